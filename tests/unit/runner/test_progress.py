"""How a run is shown: a line for each case, a bar on a terminal, or the output of batches one after
the other, whichever ends first."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.results import RunResult, TestResult, append_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.runner.batch import Batch, BatchFiles, BatchUpdate, RunOptions
from pytest_vllm_regress.runner.progress import CaseLines, OutputInOrder
from pytest_vllm_regress.runner.run import batch_progress
from tests.helpers.cases import CaseFile


def test_the_first_batch_is_shown_as_it_runs_and_the_others_in_their_turn(tmp_path: Path) -> None:
    files = BatchFiles(tmp_path)
    batches = [Batch(name, (), {}) for name in ("first", "second", "third")]
    out = io.StringIO()
    progress = OutputInOrder(lambda line: print(line, file=out), out)

    def new() -> str:
        text = out.getvalue()
        out.seek(0)
        out.truncate()
        return text

    def end(batch: Batch) -> None:
        progress.show(BatchUpdate(batch, RunResult()))

    progress.begin(batches, batches, files)
    assert new() == "[1/3] first: \n"
    progress.show(None)
    assert new() == ""  # its environment is being built: there is no file yet
    first, second, third = map(files.log, batches)
    first.write_bytes("1 é".encode()[:-1])
    second.write_text("2 whole\n")
    end(batches[1])
    assert new() == "1 "
    with first.open("ab") as more:
        more.write("é".encode()[1:] + b" end\n")
    progress.show(None)
    assert new() == "é end\n"
    end(batches[0])
    assert new() == "[2/3] second: \n2 whole\n[3/3] third: \n"
    third.write_bytes(b"\xff\n")
    end(batches[2])
    assert new() == "\N{REPLACEMENT CHARACTER}\n"
    progress.show(None)
    assert new() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    cases = tuple(
        CaseFile(name, old=("e",), new=("f",)).write(tmp_path / "cases") for name in ("a", "b")
    )
    return Batch("e", cases, {"a": "affected", "b": "affected"})


def run_of(case_id: str, verdict: Verdict) -> RunResult:
    return RunResult((TestResult(case_id, "t", verdict, "seen", "sim", "e", duration_s=12.4),))


def begin(batch: Batch, files: BatchFiles, lines: list[str], *, logs: bool = True) -> CaseLines:
    files.log(batch).write_text("pytest's own words\n")
    progress = CaseLines(lines.append, logs=logs, clock=iter(range(0, 1000, 30)).__next__)
    progress.begin([batch], [batch], files)
    return progress


def test_a_case_has_its_line_as_soon_as_it_ends(
    batch: Batch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, lines = BatchFiles(tmp_path), list[str]()
    progress = begin(batch, files, lines)
    progress.show(None)
    assert lines == []
    append_results(files.report(batch), run_of("a", Verdict.REPRODUCED))
    progress.show(None)
    progress.show(None)
    assert lines == ["[1/2] REPRODUCED a in e, 12 s; about 30 s left"]
    b = run_of("b", Verdict.REPRODUCED)
    append_results(files.report(batch), b)
    progress.show(
        BatchUpdate(batch, RunResult(run_of("a", Verdict.REPRODUCED).results + b.results))
    )
    progress.end()
    assert lines[1:] == ["[2/2] REPRODUCED b in e, 12 s"]
    assert capsys.readouterr().out == "", "nothing is unexpected: pytest's output stays in its file"


@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize("problem", ["not expected by the evidence", "pytest failed"])
def test_output_is_shown_if_something_is_unexpected(
    batch: Batch, tmp_path: Path, capsys: pytest.CaptureFixture[str], logs: bool, problem: str
) -> None:
    lines: list[str] = []
    progress = begin(batch, BatchFiles(tmp_path), lines, logs=logs)
    if problem == "pytest failed":
        progress.show(BatchUpdate(batch, RunResult(problems=(problem,))))
    else:
        progress.show(BatchUpdate(batch, run_of("a", Verdict.FIXED)))
        assert lines == ["[1/2] FIXED a in e, 12 s (not expected); about 30 s left"]
    assert capsys.readouterr().out == ("pytest's own words\n" if logs else "")


def test_a_bar_on_a_terminal_names_what_is_built_and_run(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = begin(batch, BatchFiles(tmp_path), [])
    try:
        progress.watching(lambda name: progress.show(None))("f")
    finally:
        progress.end()
    output = terminal.getvalue()
    assert "building f; running e" in output and "0/2" in output
    assert (sys.stdout, sys.stderr) == (terminal, terminal), "they are ours again"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_there_is_no_bar_where_some_output_goes_to_a_file(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", file if name == "stdout" else terminal)
    monkeypatch.setattr(sys, "stderr", file if name == "stderr" else terminal)
    progress = begin(batch, BatchFiles(tmp_path), [])
    progress.show(None)
    progress.end()
    assert terminal.getvalue() == file.getvalue() == ""


@pytest.mark.parametrize(
    ("options", "live"),
    [
        (RunOptions(), False),
        (RunOptions(pytest_args=("-k", "x")), False),
        (RunOptions(verbose=True), True),
        (RunOptions(pytest_args=("-x", "--pdb")), True),
    ],
)
def test_output_is_live_with_v_or_if_pytest_needs_the_terminal(
    options: RunOptions, live: bool
) -> None:
    assert isinstance(batch_progress(options, print), OutputInOrder) is live
