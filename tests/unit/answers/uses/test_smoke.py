"""What is tried of a project in environments, and the report of it.

With a real environment: tests/engine/uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses.answer import answer
from pytest_vllm_regress.answers.uses.presentation import report, to_json
from pytest_vllm_regress.answers.uses.project import read_project
from pytest_vllm_regress.answers.uses.smoke import (
    Smoke,
    Start,
    offered_by,
    planned,
)
from pytest_vllm_regress.answers.uses.use import Command, Place, Project, Use
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.util.report import to_markdown, to_terminal
from tests.unit.answers.uses.projects import write

HERE = Place("a.sh", 1)


def words(*options: tuple[str, str]) -> Start:
    return planned(Command(HERE, options), lambda name, value: (name, value) == ("--mode", "fast"))


def test_numbers_flags_and_values_that_vllm_lists_are_passed_on() -> None:
    tried = words(
        ("--enable-x", ""), ("--limit", "5"), ("--mode", "fast"), ("--max-model-len", "131072")
    )
    given = ("--enable-x", "--limit", "5", "--mode", "fast", "--max-model-len", "512")
    assert (tried.words, tried.left_out) == (given, ())


@pytest.mark.parametrize(
    "option",
    [
        ("--middleware", "evil.hook"),
        ("--tool-parser-plugin", "./evil.py"),
        ("--mode", "$(touch x)"),
        ("--chat-template", "/etc/passwd"),
        ("--limit", "1; rm"),
        ("--trust-remote-code", ""),
        ("--config", "1"),
        ("--port", "80"),
        ("--tensor-parallel-size", "64"),
        ("--x.y", "1"),
        ("--api-key", "1"),
    ],
)
def test_values_of_the_project_and_options_that_run_code_are_left_out(
    option: tuple[str, str],
) -> None:
    assert (words(option).words, words(option).left_out) == ((), (option[0],))


def test_commands_are_found_with_their_options(tmp_path: Path, two_releases: History) -> None:
    files = {
        "a.sh": "vllm serve m --old-flag --mode a \\\n   --unknown 3\n",
        "b.py": "run(['vllm', 'serve', model, '--kept', path])",
    }
    project = read_project(write(tmp_path, files), two_releases)
    assert [command.options for command in project.commands] == [
        (("--old-flag", ""), ("--mode", "a")),
        (("--kept", ""),),
    ]


def result() -> Smoke:
    first = Use("name", ("vllm.first",), HERE)
    uses = {
        first: "gone",
        Use("name", ("vllm.second",), HERE, instead_of=(first,)): "gone, too",
        Use("name", ("vllm.handled",), HERE, guarded=True): "gone",
        Use("environment", ("VLLM_X",), HERE): "vLLM does not read VLLM_X",
        Use("name", ("vllm.there",), HERE): "",
        Use("name", ("vllm.unclear",), HERE): None,
    }
    start = Start(Command(HERE, ()), ("--x",), ("--y",), "\x1b[31mdied")
    return Smoke("env", "1.0", uses, (start,), frozenset(), (first,))


def test_what_is_missing_counts_unless_it_is_handled() -> None:
    smoke = result()
    assert [use.name for use in smoke.problems] == ["vllm.first", "vllm.second"]
    assert smoke.failed


def test_the_report_names_everything_that_is_missing(two_releases: History) -> None:
    nothing = answer(Project((), (), 0), two_releases)
    shown = report(nothing, "project", [result()])
    lines = to_terminal(shown).splitlines()
    assert (
        "env, vLLM 1.0: 1 uses exist, 4 uses missing, 1 uses undecided, 0 of 1 servers started:"
        in lines
    )
    assert "  a.sh:1: vllm.handled: gone (handled)" in lines
    assert "  a.sh:1: vllm.first: the history says otherwise" in lines
    (start,) = (line for line in lines if "vllm serve" in line)
    assert start.startswith("  a.sh:1: vllm serve --x (without --y): did not start: ")
    assert "\x1b" not in start
    assert "vllm.first" in to_markdown(shown)
    (document,) = to_json(nothing, "project", [result()])["runs"]
    assert document["failed"] and [use["exists"] for use in document["uses"]] == [False] * 4 + [
        True,
        None,
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--env", "vllm-0.8.5", "--format", "sarif"],
        ["--env", "vllm-0.8.5", "--diff", "0.8.4", "0.8.5"],
    ],
)
def test_usage_errors(arguments: list[str]) -> None:
    assert cli.main(["uses", *arguments]) == 2


class LateMetrics:
    """A server that has metrics only some requests of /metrics after its first token, as V0 engines
    do."""

    model = "tiny"

    def __init__(self) -> None:
        self.posted: list[Mapping[str, Any]] = []
        self.looks = 0

    def get(self, path: str) -> httpx.Response:
        if path == "/openapi.json":
            return httpx.Response(200, json={"paths": {"/v1/completions": {}, "/health": {}}})
        self.looks += bool(self.posted)
        line = (
            "# TYPE vllm:generation_tokens_total counter\n"
            if self.looks > 2
            else "# TYPE process_cpu_seconds counter\n"
        )
        return httpx.Response(200, text=line)

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        assert path == "/v1/completions"
        self.posted.append(body)
        return httpx.Response(200, json={})


def test_metrics_are_read_after_the_first_token_was_counted() -> None:
    server = LateMetrics()
    offered = offered_by(cast(Server, server))
    assert offered == {"/v1/completions", "/health", "vllm:generation_tokens_total"}
    assert [body["max_tokens"] for body in server.posted] == [1]
