"""What an interrupted matrix had finished: one result file for each case and environment, until the matrix is complete."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..cases import proof, results
from ..cases.model import Case
from ..cases.results import RunResult
from ..errors import UsageError
from .runner import Job


class Journal:
    """A directory. ``key`` tells one matrix from another; what it depends on but does not name (a case's code, a lock) is looked at anew."""

    def __init__(self, root: Path, key: Sequence[str]) -> None:
        self.directory = root / hashlib.sha256(repr(tuple(key)).encode()).hexdigest()[:16]

    def partial(self, job: Job) -> Path:
        """Where the running job's pytest writes what it has finished."""
        return self.directory / f"{_digest(*job.key)}.part.json"

    def log(self, job: Job) -> Path:
        """Where the running job's output goes."""
        return self.directory / f"{_digest(*job.key)}.log"

    def finished(self, job: Job) -> RunResult:
        """What an earlier run finished of the job, its last moments included."""
        partial = self.partial(job)
        if partial.exists():
            self.add(job, _read(partial))
            partial.unlink()
        return results.merge(_read(file) for file in (self._file(job, case) for case in job.cases) if file.exists())

    def add(self, job: Job, found: RunResult) -> None:
        """Keep what was found, case by case."""
        for case in job.cases:
            mine = tuple(result for result in found.results if result.case_id == case.id)
            if mine:
                results.write(self._file(job, case), RunResult(mine))

    def remaining(self, job: Job) -> Job | None:
        """The job without the cases that are finished; None when all are."""
        left = tuple(case for case in job.cases if not self._file(job, case).exists())
        return dataclasses.replace(job, cases=left) if left else None

    def close(self) -> None:
        """The matrix is complete: nothing is to be resumed."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _file(self, job: Job, case: Case) -> Path:
        return (
            self.directory
            / f"{_digest(job.environment, proof.lock_of(job.environment), case.id, proof.fingerprint(case))}.json"
        )


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _read(file: Path) -> RunResult:
    try:
        return results.read(file)
    except UsageError:
        return RunResult()  # cut off by a full disk, or of another version: that part is run again
