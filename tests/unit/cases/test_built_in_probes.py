"""Built-in probes: how a test names them, where the target finds them, and that a case's proof
depends on them."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_vllm_regress.cases.proofs.fingerprint import code_fingerprint
from pytest_vllm_regress.engines.probe import BUILT_IN, Probe, built_in_sources
from pytest_vllm_regress.engines.processes.child import Loan
from pytest_vllm_regress.engines.processes.child_processes import Leftover
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.paths import PACKAGE
from tests.helpers import ROOT

CALL = re.compile(rf'"({"|".join(BUILT_IN)}):(\w+)"')


class RecordingChild:
    """Records the requests of a probe."""

    alive = True

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def lend(self, loan: Loan) -> contextlib.AbstractContextManager[None]:
        """Lend nothing: there is no process."""
        return contextlib.nullcontext()

    def request(self, operation: str, deadline: Deadline, **arguments: Any) -> str:
        self.requests.append(arguments)
        return operation

    def stop(self, deadline: Deadline) -> tuple[Leftover, ...]:
        self.alive = False
        return (Leftover("process", f"of {len(self.requests)} requests"),)


def probe(tmp_path: Path, child: RecordingChild) -> Probe:
    return Probe(
        cast(Any, lambda: child),
        tmp_path / "probe.py",
        lambda phase, timeout: Deadline.after(phase, 1),
        Loan(),
    )


def test_a_built_in_function_needs_no_probe_file(tmp_path: Path) -> None:
    child = RecordingChild()
    assert probe(tmp_path, child)("parsers:tool_calls", parser="x") == "call"
    (request,) = child.requests
    assert (request["file"], request["function"]) == ("vllm_regress_target.parsers", "tool_calls")


def test_a_command_of_vllm_gets_a_process_of_its_own(tmp_path: Path) -> None:
    children: list[RecordingChild] = []

    def start() -> RecordingChild:
        children.append(RecordingChild())
        return children[-1]

    own = Probe(
        cast(Any, start),
        tmp_path / "probe.py",
        lambda phase, timeout: Deadline.after(phase, 1),
        Loan(),
    )
    for function in (
        "parsers:reasoning",
        "parsers:tool_calls",
        "batch_files:run",
        "batch_files:run",
        "parsers:reasoning",
    ):
        own(function)
    assert [[request["function"] for request in child.requests] for child in children] == [
        ["reasoning", "tool_calls"],
        ["run"],
        ["run"],
        ["reasoning"],
    ]
    assert [leftover.name for leftover in own.close()] == ["of 2 requests", *["of 1 requests"] * 3]
    assert not any(child.alive for child in children)


def test_a_function_of_the_probe_file_is_named_alone(tmp_path: Path) -> None:
    child = RecordingChild()
    (tmp_path / "probe.py").touch()
    probe(tmp_path, child)("tool_calls")
    assert child.requests[0]["file"] == str(tmp_path / "probe.py")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            "parser:tool_calls",
            r"no built-in module 'parser'\. Did you mean parsers\? There are: batch_files, frontend, grammars, parsers",
        ),
        (
            "parsers:reasonin",
            r"parsers has no function 'reasonin'\. Did you mean reasoning\? There are: reasoning, tool_calls",
        ),
        ("tool_calls", "there is no .*probe.py: write the function there"),
    ],
)
def test_a_function_that_does_not_exist_is_an_error_of_the_test(
    tmp_path: Path, function: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        probe(tmp_path, RecordingChild())(function)


def test_the_target_finds_built_in_functions_and_no_other_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(PACKAGE / "target_site"))
    from vllm_regress_target import calls  # type: ignore[import-not-found]  # only the target has it on its path

    assert (
        calls.load_function("vllm_regress_target.parsers", "tool_calls").__module__
        == "vllm_regress_target.parsers"
    )
    with pytest.raises(LookupError, match="has no probe function '_tokenizer'"):
        calls.load_function("vllm_regress_target.parsers", "_tokenizer")
    with pytest.raises(FileNotFoundError):
        calls.load_function("os", "getcwd")
    assert "vllm" not in sys.modules


@pytest.mark.parametrize("module", BUILT_IN)
def test_sources_of_built_in_modules_exist(module: str) -> None:
    assert built_in_sources(module)
    assert all(file.is_file() for file in built_in_sources(module))


def test_a_proof_depends_on_the_built_in_modules_that_the_case_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calling, other, module = tmp_path / "calling", tmp_path / "other", tmp_path / "parsers.py"
    for folder, function in ((calling, "parsers:tool_calls"), (other, "tool_calls")):
        folder.mkdir()
        (folder / "test_x.py").write_text(f'vllm_probe("{function}")\n')
    module.write_text("a = 1\n")
    monkeypatch.setattr(
        "pytest_vllm_regress.cases.proofs.fingerprint.built_in_sources", lambda name: (module,)
    )
    before = {folder: code_fingerprint(folder) for folder in (calling, other)}
    module.write_text("a = 2\n")
    assert code_fingerprint(calling) != before[calling]
    assert code_fingerprint(other) == before[other]


def test_cases_call_functions_that_the_modules_have() -> None:
    for file in (ROOT / "cases").glob("*/test_*.py"):
        for module, name in CALL.findall(file.read_text()):
            assert any(
                f"def {name}(" in source.read_text() for source in built_in_sources(module)
            ), f"{file}: {module}:{name}"
