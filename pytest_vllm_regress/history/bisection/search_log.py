"""The results of a bisection so far, in a file: an interrupted bisection resumes from it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from ...errors import UsageError
from ...util.documents import parse_json
from ...util.files import read_bounded, write_atomically
from ...util.paths import writable_root
from .algorithm import State

SCHEMA_VERSION = 2
MAX_BYTES = 16 * 1024 * 1024


@dataclasses.dataclass(frozen=True)
class CandidateResult:
    """State of a candidate, and why.

    Of ``runs`` runs with a clear verdict ``bad`` showed the failure; ``seconds`` is the time of all
    runs.
    """

    state: State
    why: str
    runs: int = 0
    bad: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> str:
        """How often the failure was seen, for example `` (failed 3 of 5 times)``.

        Empty for a single run.
        """
        return f" (failed {self.bad} of {self.runs} times)" if self.runs > 1 else ""


def output_file(case_id: str) -> Path:
    """Return the file with the output of builds and pytest of the last bisection of a case."""
    return writable_root() / "bisect" / f"{case_id}.log"


class SearchLog:
    """Results by candidate. The file is rewritten after every candidate; ``key`` identifies the
    search that it belongs to.

    Raises ``UsageError`` for an existing file of another search.
    """

    def __init__(self, path: Path, key: Sequence[str]) -> None:
        self._path = path
        self._key = list(key)
        self.results: dict[str, CandidateResult] = self._read() if path.exists() else {}

    @classmethod
    def in_cache(cls, key: Sequence[str]) -> SearchLog:
        """Return the log in the cache folder whose name is derived from ``key``."""
        digest = hashlib.sha256(repr(tuple(key)).encode()).hexdigest()[:16]
        return cls(writable_root() / "bisect" / f"{digest}.json", key)

    def add(self, candidate: str, result: CandidateResult) -> None:
        """Record a result and write the file."""
        self.results[candidate] = result
        plain = {
            name: {**dataclasses.asdict(entry), "state": entry.state.value}
            for name, entry in self.results.items()
        }
        document = {"schema": SCHEMA_VERSION, "search": self._key, "found": plain}
        write_atomically(self._path, json.dumps(document, indent=1) + "\n")

    def forget(self) -> None:
        """Drop all results and remove the file."""
        self.results = {}
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, CandidateResult]:
        advice = "remove it, or give --fresh"
        try:
            document = parse_json(
                read_bounded(self._path, MAX_BYTES, what="the log of a bisection")
            )
            if document["schema"] != SCHEMA_VERSION or document["search"] != self._key:
                raise UsageError(
                    f"{self._path}: belongs to another bisection (case, candidates or environment differ): {advice}"
                )
            return {str(name): _result(plain) for name, plain in document["found"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{self._path}: not the log of a bisection ({error}): {advice}"
            ) from None


def _result(plain: dict[str, object]) -> CandidateResult:
    runs, bad, seconds = (float(str(plain[name])) for name in ("runs", "bad", "seconds"))
    return CandidateResult(State(plain["state"]), str(plain["why"]), int(runs), int(bad), seconds)
