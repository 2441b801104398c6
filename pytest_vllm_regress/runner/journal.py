"""Results of an interrupted run: one file for each finished case and environment, kept until the
run is complete.

The same command resumes a run. ``vllm-regress matrix`` and ``try`` keep journals; a key tells one
from another (for a matrix: the named cases, environments, device, shard and the arguments for
pytest; ``--fresh`` discards its journal). A case is finished in an environment if its result file
can be read and neither the case's fingerprint nor the environment's lock has changed since.
Failures of a machine or a build are never recorded. The journal is removed when a run is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..cases.model import Case
from ..cases.proofs import proof
from ..cases.proofs.fingerprint import case_fingerprint
from ..cases.results import (
    RunResult,
    merge_results,
    read_appended_results,
    read_results,
    write_results,
)
from ..errors import UsageError
from ..util.documents import load_json
from ..util.files import write_atomically
from .batch import Batch

_MAX_NOTE = 1024 * 1024


@dataclasses.dataclass(frozen=True)
class BatchFiles:
    """Where running batches put their reports and their output."""

    directory: Path

    def report(self, batch: Batch) -> Path:
        """The report that the batch's pytest appends to (see ``pytest_run.ReportReader``)."""
        return self.directory / f"{_digest(*batch.key)}.part.jsonl"

    def log(self, batch: Batch) -> Path:
        """The output of the batch's pytest."""
        return self.directory / f"{_digest(*batch.key)}.log"

    def partial_results(self, batch: Batch) -> RunResult:
        """Return what the batch's pytest has reported, as far as it can be read."""
        try:
            return read_appended_results(self.report(batch))[0]
        except UsageError:
            return RunResult()


class Journal:
    """Results of finished cases in a directory named after ``key``, which distinguishes one run
    from another.

    A case is finished in an environment when its result file can be read. The file is named after
    the case's fingerprint and the environment's lock as they were when this run first asked for the
    case, so a case that has changed since is run again. The report of a pytest that was killed
    belongs to the files that its run noted when it began (``_note_files``): results of a case that
    has another file now are dropped.
    """

    def __init__(self, root: Path, key: Sequence[str]) -> None:
        self.directory = root / hashlib.sha256(repr(tuple(key)).encode()).hexdigest()[:16]
        self.files = BatchFiles(self.directory)
        self._names: dict[tuple[str, str], str] = {}
        self._runs: dict[Path, RunResult] = {}
        """Results by file, as read or written.

        Reading masks secrets, which takes minutes for thousands of files.
        """

    def begin(self) -> None:
        """Begin a run: cases and locks may have changed since the last one."""
        self._names.clear()
        self._runs.clear()

    def finished(self, batch: Batch) -> RunResult:
        """Return what earlier runs finished of the batch.

        The report of a pytest that was killed is taken over first.
        """
        report = self.files.report(batch)
        if report.exists():
            names = self._noted_files(batch)
            unchanged = {
                case.id
                for case in batch.cases
                if names.get(case.id) == self._file(batch, case).name
            }
            self.add(batch.only(unchanged), self.files.partial_results(batch))
            report.unlink()
        self._note_files(batch)
        return merge_results(
            run for case in batch.cases if (run := self._stored(batch, case)) is not None
        )

    def add(self, batch: Batch, run: RunResult) -> None:
        """Keep these results, one file for each case."""
        for case in batch.cases:
            case_results = tuple(result for result in run.results if result.case_id == case.id)
            if case_results:
                file, stored = self._file(batch, case), RunResult(case_results)
                write_results(file, stored)
                self._runs[file] = stored

    def remaining(self, batch: Batch) -> Batch | None:
        """Return the batch without the cases that are finished; None if all are."""
        cases = tuple(case for case in batch.cases if self._stored(batch, case) is None)
        return dataclasses.replace(batch, cases=cases) if cases else None

    def close(self) -> None:
        """Remove everything: the run is complete."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _stored(self, batch: Batch, case: Case) -> RunResult | None:
        """Return the stored results of a case, or None if there are none that can be read."""
        file = self._file(batch, case)
        if file not in self._runs and file.exists():
            with contextlib.suppress(
                UsageError
            ):  # cut off by a full disk, or written by another version
                self._runs[file] = read_results(file)
        return self._runs.get(file)

    def _file(self, batch: Batch, case: Case) -> Path:
        key = (batch.environment, case.id)
        if key not in self._names:
            lock = proof.lock_id(batch.environment)
            self._names[key] = (
                f"{_digest(batch.environment, lock, case.id, case_fingerprint(case))}.json"
            )
        return self.directory / self._names[key]

    def _note_files(self, batch: Batch) -> None:
        """Note the file of each case, for the run that resumes this one."""
        names = {case.id: self._file(batch, case).name for case in batch.cases}
        write_atomically(self._note(batch), json.dumps(names))

    def _noted_files(self, batch: Batch) -> dict[str, str]:
        """Return the files that the last run noted; none if it noted nothing that can be read."""
        try:
            names = load_json(self._note(batch), _MAX_NOTE, what="a note of the journal")
        except UsageError:
            return {}
        return names if isinstance(names, dict) else {}

    def _note(self, batch: Batch) -> Path:
        return self.directory / f"{_digest(*batch.key)}.files"


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
