"""What jobs that run side by side write, shown one job after the other."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TextIO

from .runner import Job, Say

_CHUNK = 1 << 16


class InOrder:
    """Asked again and again: copies what the first job that has not ended has written since, and goes on to the next when it has ended.

    ``jobs``: each with the file that it writes to. A job that waits for its environment has no file yet.
    """

    def __init__(self, jobs: Sequence[tuple[Job, Path]], say: Say, out: TextIO | None = None) -> None:
        self._jobs = jobs
        self._say = say
        self._out = out or sys.stdout
        self._at = 0
        self._begin()

    def __call__(self, ended: Collection[tuple[str, int]]) -> None:
        """``ended``: the keys of the jobs that have."""
        while self._at < len(self._jobs):
            job, file = self._jobs[self._at]
            has_ended = job.key in ended  # asked first: what it wrote before it ended is there
            self._copy(file)
            if not has_ended:
                return
            self._at += 1
            self._begin()

    def _begin(self) -> None:
        self._offset, self._decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
        if self._at < len(self._jobs):
            job, _ = self._jobs[self._at]
            cases = ", ".join(case.id for case in job.cases)
            self._say(f"[{self._at + 1}/{len(self._jobs)}] {job.environment}: {cases}")

    def _copy(self, file: Path) -> None:
        if not file.exists():
            return
        with file.open("rb") as written:
            written.seek(self._offset)
            while new := written.read(_CHUNK):
                self._out.write(self._decoder.decode(new))
            self._offset = written.tell()
        self._out.flush()
