"""How is a matrix resumed? Results of an interrupted run are kept until the run is complete.

The same command resumes a run. ``vllm-regress matrix``, ``try`` and ``watch`` keep journals; a key
tells one from another (for a matrix: the named cases, environments, device, shard and the arguments
for pytest; ``--fresh`` discards its journal). Failures of a machine or a build are never recorded.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..cases.model import Case
from ..cases.proofs import proof
from ..cases.proofs.fingerprint import case_fingerprint
from ..cases.results import RunResult, merge_results, run_from_document
from ..errors import UsageError
from ..util.store import Store
from .batch import Batch, BatchFiles, digest


@dataclass(frozen=True)
class JournalEntry:
    """A case that was begun in an environment, and its results (a result file) once it is finished.

    ``version``: of the case and the environment's lock. A case that has changed since is run again.
    """

    version: str
    results: dict[str, Any] | None = None


class Journal:
    """Results of finished cases in a directory named after ``key``, which distinguishes one run
    from another.

    The report of a pytest that was killed belongs to the versions with which its batch was begun:
    results of a case that has another version now are dropped.
    """

    def __init__(self, root: Path, key: Sequence[str]) -> None:
        self.directory = root / digest(*key)[:16]
        self.files = BatchFiles(self.directory)
        self._store = Store(
            self.directory / "cases.jsonl", JournalEntry, what="the journal of a run"
        )
        self._case_version = functools.cache(lambda case: case_fingerprint(case))
        self._lock = functools.cache(lambda environment: proof.lock_id(environment))
        """Reading the files of a case takes 10 ms, and each case runs in many environments."""
        self._runs: dict[str, RunResult | None] = {}
        """Results by name of the entry, as read or written.

        Reading masks secrets, which takes minutes for thousands of cases.
        """

    def begin(self) -> None:
        """Begin a run: cases and locks may have changed since the last one.

        Raises ``UsageError`` while the same command runs elsewhere.
        """
        self._store.lock()
        self._case_version.cache_clear()
        self._lock.cache_clear()
        self._runs.clear()

    def finished(self, batch: Batch) -> RunResult:
        """Return what earlier runs finished of the batch.

        The report of a pytest that was killed is taken over first.
        """
        report = self.files.report(batch)
        if report.exists():
            begun = {case.id for case in batch.cases if self._entry(batch, case)}
            self.add(batch.only(begun), self.files.partial_results(batch))
            report.unlink()
        self._store.add_all(
            {
                _name(batch, case): JournalEntry(self._version(batch, case))
                for case in batch.cases
                if not self._entry(batch, case)
            }
        )
        return merge_results(
            run for case in batch.cases if (run := self._stored(batch, case)) is not None
        )

    def add(self, batch: Batch, run: RunResult) -> None:
        """Keep these results, but not of cases of which no test ended: they are run again."""
        entries = {}
        for case in batch.cases:
            case_results = tuple(result for result in run.results if result.case_id == case.id)
            if any(result.device != "unknown" for result in case_results):
                name, stored = _name(batch, case), RunResult(case_results)
                entries[name] = JournalEntry(self._version(batch, case), stored.to_json())
                self._runs[name] = stored
        self._store.add_all(entries)

    def remaining(self, batch: Batch) -> Batch | None:
        """Return the batch without the cases that are finished; None if all are."""
        cases = tuple(case for case in batch.cases if self._stored(batch, case) is None)
        return replace(batch, cases=cases) if cases else None

    def close(self) -> None:
        """Remove everything: the run is complete, or is to start over."""
        self._store.lock()  # another run of the same command may be using it
        for path in self.directory.glob("[!.]*"):
            path.unlink(missing_ok=True)
        self._store.remove()
        self._store.close()
        with contextlib.suppress(OSError):  # another run has begun
            self.directory.rmdir()

    def release(self) -> None:
        """Let other runs use the journal, which stays."""
        self._store.close()

    def _entry(self, batch: Batch, case: Case) -> JournalEntry | None:
        """Return the entry of the case's present version."""
        entry = self._store.entries.get(_name(batch, case))
        return entry if entry and entry.version == self._version(batch, case) else None

    def _stored(self, batch: Batch, case: Case) -> RunResult | None:
        """Return the results of a case, or None if there are none that can be read."""
        name, entry = _name(batch, case), self._entry(batch, case)
        if entry is None or entry.results is None:
            return None
        if name not in self._runs:
            self._runs[name] = None
            with contextlib.suppress(UsageError):  # written by another version of this package
                self._runs[name] = run_from_document(entry.results, name)
        return self._runs[name]

    def _version(self, batch: Batch, case: Case) -> str:
        return digest(self._lock(batch.environment), self._case_version(case))


def _name(batch: Batch, case: Case) -> str:
    return f"{case.id} in {batch.environment}"
