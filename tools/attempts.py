"""Count how often each proof was run again, and with which verdicts, in ``attempts.json`` beside
the cases: ``python -m tools.attempts RESULTS...``.

The share of expected verdicts shows how reproducible a case is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_vllm_regress.cases.loading import default_cases_dir, load_all_cases
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.proofs import proof
from pytest_vllm_regress.cases.proofs.fingerprint import code_fingerprint
from pytest_vllm_regress.cases.results import Cell, RunResult, group_into_cells, read_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.util import codec

FILE = "attempts.json"
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Attempts:
    """Number of runs of a case in one environment of its proof, on one device.

    ``code``: fingerprint of the tests and the probe that were run. ``latest``: when the newest run
    started, in seconds since the epoch.
    """

    code: str
    runs: int = 0
    expected: int = 0
    inconclusive: int = 0
    latest: float = 0.0

    @property
    def wrong(self) -> int:
        """Number of runs with a clear but unexpected verdict."""
        return self.runs - self.expected - self.inconclusive

    def __add__(self, other: Attempts) -> Attempts:
        return Attempts(
            self.code,
            self.runs + other.runs,
            self.expected + other.expected,
            self.inconclusive + other.inconclusive,
            max(self.latest, other.latest),
        )


Record = dict[str, dict[str, Attempts]]
"""Attempts by case id, then by environment and device, for example ``vllm-0.8.5 sim``."""


def read_attempts(directory: Path) -> Record:
    """Return the attempts recorded beside the cases. Raises ``UsageError`` for an invalid file."""
    path = directory / FILE
    if not path.exists():
        return {}
    return codec.load(Record, path, MAX_BYTES, what="a record of python -m tools.attempts")


def count_attempts(directory: Path, cases: Sequence[Case], runs: Iterable[RunResult]) -> int:
    """Add runs of the proofs' environments to the record in ``directory``, oldest first. Return how
    many are new.

    A run counts once, however often its file is given. Runs of tests that have changed since do not
    count, and a changed test starts anew.
    """
    record = read_attempts(directory)
    codes = {case.id: code_fingerprint(case.directory) for case in cases}
    proven = {
        (case.id, environment) for case in cases for environment in proof.evidence_roles(case)
    }
    cells = [
        cell
        for run in runs
        for cell in group_into_cells(run.results)
        if (cell.case_id, cell.environment) in proven
    ]
    count = 0
    for cell in sorted(cells, key=_started_at):
        code = codes[cell.case_id]
        if any(result.code not in ("", code) for result in cell.results):
            continue  # of an earlier test; empty if the environment was not built
        row, place = record.setdefault(cell.case_id, {}), f"{cell.environment} {cell.device}"
        before = row.get(place)
        if before is None or before.code != code:
            before = Attempts(code)
        if (latest := _started_at(cell)) > before.latest:
            inconclusive = cell.verdict is Verdict.INCONCLUSIVE
            row[place] = before + Attempts(code, 1, int(cell.expected), int(inconclusive), latest)
            count += 1
    if count:
        codec.save(
            directory / FILE,
            {case_id: dict(sorted(row.items())) for case_id, row in sorted(record.items())},
        )
    return count


def total(attempts: Iterable[Attempts]) -> Attempts:
    """Return the sums of several attempts."""
    return sum(attempts, Attempts(""))


def _started_at(cell: Cell) -> float:
    return max(result.started_at for result in cell.results)


def main(files: Sequence[str]) -> None:
    directory = default_cases_dir()
    runs = [read_results(Path(file)) for file in files]
    count = count_attempts(directory, load_all_cases(directory), runs)
    print(f"{count} attempts are new in {directory / FILE}")


if __name__ == "__main__":
    main(sys.argv[1:])
