"""Batch files, with a command that stands in for vLLM's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported, batch_files
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import commandline, engines
from pytest_vllm_regress.target_site.vllm_regress_target.dialect.plan import Plan

Command = Callable[[], Any]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Command], None]:
    """``use(command)``: let ``command`` run batch files."""
    monkeypatch.setattr(sys, "argv", sys.argv)  # restored after the test
    monkeypatch.setattr(engines, "prepare_process", lambda plan, front: None)
    monkeypatch.setattr(commandline, "given", lambda spec: Plan({}, {}, []))
    return lambda command: monkeypatch.setattr(
        commandline, "batch_command", lambda: (["vllm", "run-batch"], command)
    )


def paths() -> tuple[Path, Path]:
    """Return the input and the output file that the command line names."""
    return Path(sys.argv[sys.argv.index("-i") + 1]), Path(sys.argv[sys.argv.index("-o") + 1])


def test_lines_are_written_as_given_and_answers_returned(use: Callable[[Command], None]) -> None:
    seen = []

    def command() -> dict[str, Any]:
        source, result = paths()
        seen.append((sys.argv[:2], sys.argv[-2:], source.read_text(encoding="utf-8")))
        result.write_text('{"custom_id": "b"}\n{"custom_id": "a"}\n')
        return {}  # as runpy returns the globals of a module

    use(command)
    answer = batch_files.run("/m", [{"custom_id": "a"}, "{not JSON"], ["--seed", "1"])
    assert answer == {"status": 0, "answers": [{"custom_id": "b"}, {"custom_id": "a"}]}
    assert seen == [(["vllm", "run-batch"], ["--seed", "1"], '{"custom_id": "a"}\n{not JSON\n')]


@pytest.mark.parametrize(
    ("end", "status"),
    [(SystemExit(2), 2), (SystemExit(), 0), (SystemExit("no such model"), 1), (SystemExit(0), 0)],
)
def test_the_exit_status_is_returned(
    use: Callable[[Command], None], end: SystemExit, status: int
) -> None:
    def command() -> None:
        raise end

    use(command)
    assert batch_files.run("/m", []) == {"status": status, "answers": []}


def test_the_exception_of_the_command_reaches_the_test(use: Callable[[Command], None]) -> None:
    use(lambda: json.loads("{"))
    with pytest.raises(json.JSONDecodeError):
        batch_files.run("/m", [])


def test_a_release_without_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commandline, "batch_command", lambda: (["no_such_module"], int))
    monkeypatch.setattr(batch_files, "version", lambda: "0.4.0")
    with pytest.raises(Unsupported, match=r"vLLM 0\.4\.0 cannot run batch files") as error:
        batch_files.run("/m", [])
    assert error.value.claim == {"refused_by": "vLLM 0.4.0"}
