"""Batches that run side by side are shown one after the other, whichever ends first."""

from __future__ import annotations

import io
from pathlib import Path

from pytest_vllm_regress.cases.results import RunResult
from pytest_vllm_regress.runner.batch import Batch
from pytest_vllm_regress.runner.executor import BatchUpdate
from pytest_vllm_regress.runner.journal import BatchFiles
from pytest_vllm_regress.runner.progress import OutputInOrder


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
