"""Running a case in one release after the other, and remembering what each showed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.version import Version

from ..cases.model import Case
from ..cases.results import TestResult
from ..cases.verdict import Verdict, excerpt
from ..errors import BuildError, RegressError, UsageError
from ..runner import runner as runs
from ..util.documents import parse_json
from ..util.files import read_bounded, write_whole
from . import algorithm as bisection
from .algorithm import State

SCHEMA_VERSION = 1
MAX_BYTES = 16 * 1024 * 1024
_BAD = (Verdict.REPRODUCED, Verdict.REGRESSED)
_GOOD = (Verdict.FIXED, Verdict.UNEXPECTEDLY_FIXED)


def state_of(results: Sequence[TestResult]) -> State | None:
    """Whether the failure shows in any of a case's tests; None when that cannot be told (INCONCLUSIVE)."""
    seen = {result.verdict for result in results}
    if seen & set(_BAD):
        return State.BAD
    if Verdict.INCONCLUSIVE in seen or not seen:
        return None
    return State.GOOD if seen & set(_GOOD) else State.SKIPPED


@dataclasses.dataclass(frozen=True)
class Told:
    """What one release showed, and why."""

    state: State
    why: str


class Notes:
    """What a bisection has found so far: a file, written whole after every release."""

    def __init__(self, path: Path, key: Sequence[str]) -> None:
        self._path = path
        self._key = list(key)
        self.found: dict[str, Told] = {}
        if path.exists():
            self.found = self._read()

    def add(self, release: str, told: Told) -> None:
        """Remember, at once."""
        self.found[release] = told
        plain = {name: {"state": each.state.value, "why": each.why} for name, each in self.found.items()}
        write_whole(
            self._path, json.dumps({"schema": SCHEMA_VERSION, "search": self._key, "found": plain}, indent=1) + "\n"
        )

    def forget(self) -> None:
        """Remove the file."""
        self.found = {}
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Told]:
        again = "remove it, or give --restart"
        try:
            document = parse_json(read_bounded(self._path, MAX_BYTES, what="the notes of a bisection"))
            if document["schema"] != SCHEMA_VERSION or document["search"] != self._key:
                raise UsageError(
                    f"{self._path}: is of another bisection (case, releases or environment differ): {again}"
                )
            return {str(name): Told(State(each["state"]), str(each["why"])) for name, each in document["found"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{self._path}: not the notes of a bisection ({error}): {again}") from None


class Search:
    """Runs a case in one release after the other. ``build``: builds environments ahead; None: it does not."""

    def __init__(
        self,
        case: Case,
        candidates: Sequence[Version],
        name_of: Callable[[str], str],
        notes: Notes,
        runner: runs.Runner,
        build: Callable[[str], None] | None,
        repeat: int,
        tell: runs.Say,
    ) -> None:
        self._case = case
        self._candidates = candidates
        self._name_of = name_of
        self._notes = notes
        self._runner = runner
        self._build = build
        self._repeat = repeat
        self._tell = tell

    def known(self) -> dict[int, State]:
        """What is known by now, by index."""
        return {
            index: self._notes.found[str(each)].state
            for index, each in enumerate(self._candidates)
            if str(each) in self._notes.found
        }

    def run(self) -> None:
        """Until nothing more is to be learnt."""
        count = len(self._candidates)
        ends = f"{self._candidates[0]} to {self._candidates[-1]}"
        self._tell(f"{count} releases, {ends}: at most {bisection.most_runs(count)} runs if the failure changes once")
        if self._notes.found:
            self._tell(
                f"resumed: {', '.join(f'{name} {told.state.value}' for name, told in self._notes.found.items())}"
            )
        ahead = ThreadPoolExecutor(1, "build")
        try:
            while (index := bisection.next_release(count, self.known())) is not None:
                for future in self._likely_next(index):
                    ahead.submit(self._build_ahead, future)
                release = str(self._candidates[index])
                told = self._look(release)
                self._notes.add(release, told)
                self._tell(f"{release}: {told.state.value} ({told.why})")
        finally:
            ahead.shutdown(wait=False, cancel_futures=True)

    def _look(self, release: str) -> Told:
        job = runs.Job(self._name_of(release), (self._case,), {})
        why = "no result"
        for _ in range(self._repeat):
            outcome = self._runner.run([job])
            if outcome.interrupted:
                raise KeyboardInterrupt
            found = outcome.run.results
            state = state_of(found)
            why = _why(found, state)
            if state is not None:
                return Told(state, why)
            if outcome.unbuilt:
                break
        return Told(State.SKIPPED, why)

    def _likely_next(self, index: int) -> list[str]:
        """The environments that come next if this release is bad, and if it is good."""
        if self._build is None:
            return []
        outcomes = ({**self.known(), index: state} for state in (State.BAD, State.GOOD))
        following = (bisection.next_release(len(self._candidates), outcome) for outcome in outcomes)
        return list(dict.fromkeys(self._name_of(str(self._candidates[each])) for each in following if each is not None))

    def _build_ahead(self, name: str) -> None:
        assert self._build is not None
        try:
            self._build(name)
        except RegressError as error:
            kind = "cannot be built" if isinstance(error, BuildError) else "cannot be used"
            self._tell(f"{name} {kind}; it may not be needed")


def _why(found: Sequence[TestResult], state: State | None) -> str:
    telling = {
        State.BAD: _BAD,
        State.GOOD: _GOOD,
        State.SKIPPED: (Verdict.NOT_APPLICABLE,),
        None: (Verdict.INCONCLUSIVE,),
    }[state]
    first = next((result for result in found if result.verdict in telling), None)
    return f"{first.verdict.value}: {excerpt(first.reason)}" if first else "no result"
