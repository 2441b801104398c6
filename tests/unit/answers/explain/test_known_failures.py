"""Which documented failures a failed test of somebody else's suite may show."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.explain.known_failures import KnownFailures, Suspects
from pytest_vllm_regress.cases.model import Case
from tests.helpers.cases import CaseFile, project_cases

TEST = 'def test(vllm_server):\n    vllm_server.post("{route}", {{}})\n'


def case(folder: Path, name: str, route: str, pattern: str = "nothing") -> Case:
    files = {f"test_{name}.py": TEST.format(route=route)}
    return CaseFile(name, kind="exception", phase="request", pattern=pattern).write(folder, files)


def test_the_text_of_a_failure_decides_and_its_route_says_nothing(tmp_path: Path) -> None:
    texts = case(tmp_path, "texts", "/v1/other", "no room for the answer")
    routes = case(tmp_path, "routes", "/v1/messages")
    known = KnownFailures((texts, routes), {"vllm": "0.8.4"})
    report = "POST /v1/messages: status 200\nE   RuntimeError: no room for the answer"
    assert known.suspects(report) == Suspects(("texts",))
    assert known.suspects("POST /v1/messages: status 200") == Suspects()
    assert known.suspects("E   assert 1 == 2") == Suspects()


def test_a_route_that_the_release_does_not_have_explains_a_404() -> None:
    report = "POST /v1/messages: status 404"
    old = KnownFailures((), {"vllm": "0.8.5"}).suspects(report)
    assert old.missing == (str(old),) == ("/v1/messages exists since 0.11.1",)
    assert KnownFailures((), {"vllm": "0.33.0"}).suspects(report) == Suspects()


def test_only_failures_of_the_environment_count() -> None:
    old = KnownFailures.of("vllm-0.11.2", project_cases())
    new = KnownFailures.of("vllm-0.33.0", project_cases())
    assert "vllm-30264" in {case.id for case in old.cases}
    assert "vllm-30264" not in {case.id for case in new.cases}
    assert KnownFailures.of("/nowhere/python", project_cases()).cases == ()


@pytest.mark.parametrize(
    ("suspects", "words"),
    [
        (Suspects(("a",), ("b",)), "a"),
        (Suspects(("a", "b", "c", "d", "e")), "a, b, c and 2 more"),
        (Suspects((), ("/x was removed before",)), "/x was removed before"),
        (Suspects(), ""),
    ],
)
def test_suspects_in_words(suspects: Suspects, words: str) -> None:
    assert str(suspects) == words


@pytest.mark.parametrize(
    "message",
    [
        "[10:00:00] cpp/regex_converter.cc:1: Regex parsing error at position 3: Lookahead",
        "[10:00:00] cpp/grammar_parser.cc:2: EBNF parser error at line 1, column 5: Expect element",
        "[10:00:00] cpp/grammar_parser.cc:2: EBNF lexer error at line 1, column 5: Unexpected",
    ],
)
def test_every_message_of_a_constraint_that_kills_the_engine_is_known(message: str) -> None:
    known = KnownFailures(tuple(project_cases()), {"vllm": "0.20.0"})
    frames = """
  File "vllm/v1/core/sched/scheduler.py", line 1, in schedule
    self.f()
  File "vllm/v1/structured_output/__init__.py", line 2, in _create_grammar
    return self.backend.compile_grammar(a, b)
"""
    report = f"EngineCore encountered a fatal error.\nTraceback (most recent call last):{frames}RuntimeError: {message}\n"
    assert "vllm-43920" in known.suspects(report).shown
    assert "vllm-43920" not in known.suspects(f"RuntimeError: {message}").shown
