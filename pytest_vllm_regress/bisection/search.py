"""Running a case in one candidate after the other, releases or commits, and remembering what each showed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..cases.model import Case
from ..cases.results import TestResult
from ..cases.verdict import Verdict, excerpt
from ..errors import BuildError, RegressError, UsageError
from ..runner import runner as runs
from ..util.documents import parse_json
from ..util.files import read_bounded, write_whole
from ..util.paths import writable_root
from . import algorithm as bisection
from .algorithm import State

SCHEMA_VERSION = 2
MAX_BYTES = 16 * 1024 * 1024
_BAD = (Verdict.REPRODUCED, Verdict.REGRESSED)
_GOOD = (Verdict.FIXED, Verdict.UNEXPECTEDLY_FIXED)
_AGAIN = " again"
_IMPORT_ERROR = re.compile(r"\[import\] (?:[\w ]+: )?[\w.]*(?:Error|Exception|Exit)\b")


def state_of(results: Sequence[TestResult]) -> State | None:
    """Whether the failure shows in any of a case's tests; None when that cannot be told (INCONCLUSIVE)."""
    seen = {result.verdict for result in results}
    if seen & set(_BAD):
        return State.BAD
    if Verdict.INCONCLUSIVE in seen or not seen:
        return None
    return State.GOOD if seen & set(_GOOD) else State.SKIPPED


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is searched: ``candidates``, oldest first, and the ``environments`` that have them.

    ``repeat``: how often an INCONCLUSIVE candidate is run before it is skipped; ``trials``: runs of a candidate that can be told, one of which
    is enough to show a failure that comes and goes; ``probes``: as in ``algorithm.next_release``; ``kind``: what candidates are, in messages.
    """

    case: Case
    candidates: tuple[str, ...]
    environments: tuple[str, ...]
    kind: str = "releases"
    repeat: int = 2
    trials: int = 1
    probes: int | None = None


@dataclasses.dataclass(frozen=True)
class ReleaseState:
    """What a candidate showed, and why. ``bad`` of ``runs`` runs that could be told showed the failure; ``seconds`` all of them took."""

    state: State
    why: str
    runs: int = 0
    bad: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> str:
        """How often the failure showed, where that is more than one run's word."""
        return f" {self.bad} of {self.runs}" if self.runs > 1 else ""


class Notes:
    """What a bisection has found so far: a file, written whole after every candidate."""

    def __init__(self, path: Path, key: Sequence[str]) -> None:
        self._path = path
        self._key = list(key)
        self.found: dict[str, ReleaseState] = {}
        if path.exists():
            self.found = self._read()

    @classmethod
    def in_cache(cls, key: Sequence[str]) -> Notes:
        """Where nobody says where: in the cache, under what is searched."""
        digest = hashlib.sha256(repr(tuple(key)).encode()).hexdigest()[:16]
        return cls(writable_root() / "bisect" / f"{digest}.json", key)

    def add(self, candidate: str, state: ReleaseState) -> None:
        """Remember, at once."""
        self.found[candidate] = state
        plain = {name: {**dataclasses.asdict(each), "state": each.state.value} for name, each in self.found.items()}
        document = {"schema": SCHEMA_VERSION, "search": self._key, "found": plain}
        write_whole(self._path, json.dumps(document, indent=1) + "\n")

    def forget(self) -> None:
        """Remove the file."""
        self.found = {}
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, ReleaseState]:
        again = "remove it, or give --restart"
        try:
            document = parse_json(read_bounded(self._path, MAX_BYTES, what="the notes of a bisection"))
            if document["schema"] != SCHEMA_VERSION or document["search"] != self._key:
                raise UsageError(
                    f"{self._path}: is of another bisection (case, candidates or environment differ): {again}"
                )
            return {str(name): _state(each) for name, each in document["found"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{self._path}: not the notes of a bisection ({error}): {again}") from None


class Search:
    """Runs what must be run until nothing more is to be learnt. ``build``: makes an environment ready while another is run; None: never ahead."""

    def __init__(
        self, plan: Plan, notes: Notes, runner: runs.RunsJobs, build: Callable[[str], None] | None, tell: runs.Say
    ) -> None:
        self._plan = plan
        self._notes = notes
        self._runner = runner
        self._build = build
        self._tell = tell

    def known(self) -> dict[int, State]:
        """What is known by now, by index."""
        found = self._notes.found
        return {index: found[each].state for index, each in enumerate(self._plan.candidates) if each in found}

    def run(self) -> None:
        """Until nothing more is to be learnt."""
        plan = self._plan
        count = len(plan.candidates)
        self._tell(
            f"{count} {plan.kind}, {plan.candidates[0]} to {plan.candidates[-1]}: "
            f"at most {bisection.most_runs(count)} runs if the failure changes once"
        )
        if self._notes.found:
            self._tell(
                f"resumed: {', '.join(f'{name} {each.state.value}' for name, each in self._notes.found.items())}"
            )
        ahead = ThreadPoolExecutor(1, "build")
        try:
            while (index := bisection.next_release(count, self.known(), plan.probes)) is not None:
                for future in self._likely_next(index):
                    ahead.submit(self._build_ahead, future)
                self._note(plan.candidates[index], self._look(plan.environments[index], plan.trials))
        finally:
            ahead.shutdown(wait=False, cancel_futures=True)

    def again(self, candidate: str, environment: str, times: int) -> ReleaseState:
        """What so many further runs of a candidate show. Remembered too."""
        name = candidate + _AGAIN
        if name not in self._notes.found:
            self._note(name, self._look(environment, times))
        return self._notes.found[name]

    def _note(self, candidate: str, seen: ReleaseState) -> None:
        self._notes.add(candidate, seen)
        self._tell(f"{candidate}: {seen.state.value}{seen.rate} ({seen.why})")

    def _look(self, environment: str, trials: int) -> ReleaseState:
        started = time.monotonic()
        job = runs.Job(environment, (self._plan.case,), {})
        told: dict[State, str] = {}
        bad = done = unclear = 0
        why = "no result"
        while done < trials and unclear < self._plan.repeat:
            outcome = self._runner.run([job])
            if outcome.interrupted:
                raise KeyboardInterrupt
            found = outcome.run.results
            state = state_of(found)
            why = _why(found, state)
            if state is State.SKIPPED or (state is None and (outcome.unbuilt or _does_not_import(found))):
                break  # a second run would say the same
            if state is None:
                unclear += 1
                continue
            done += 1
            bad += state is State.BAD
            told.setdefault(state, why)
        seconds = round(time.monotonic() - started, 1)
        overall = State.BAD if bad else State.GOOD if done == trials else State.SKIPPED
        return ReleaseState(overall, told.get(overall, why), done, bad, seconds)

    def _likely_next(self, index: int) -> list[str]:
        """The environments that come next if this candidate is bad, and if it is good."""
        if self._build is None:
            return []
        plan = self._plan
        outcomes = ({**self.known(), index: state} for state in (State.BAD, State.GOOD))
        following = (bisection.next_release(len(plan.candidates), outcome, plan.probes) for outcome in outcomes)
        return list(dict.fromkeys(plan.environments[each] for each in following if each is not None))

    def _build_ahead(self, name: str) -> None:
        assert self._build is not None
        try:
            self._build(name)
        except RegressError as error:
            kind = "cannot be built" if isinstance(error, BuildError) else "cannot be used"
            self._tell(f"{name} {kind}; it may not be needed")


def _does_not_import(found: Sequence[TestResult]) -> bool:
    """An exception ended the package's import: that is no matter of chance, as an import that takes too long is."""
    return any(_IMPORT_ERROR.match(text) for result in found for text in (result.symptom, result.dossier))


def _state(plain: dict[str, object]) -> ReleaseState:
    numbers = {name: float(str(plain[name])) for name in ("runs", "bad", "seconds")}
    return ReleaseState(
        State(plain["state"]), str(plain["why"]), int(numbers["runs"]), int(numbers["bad"]), numbers["seconds"]
    )


def _why(found: Sequence[TestResult], state: State | None) -> str:
    telling = {
        State.BAD: _BAD,
        State.GOOD: _GOOD,
        State.SKIPPED: (Verdict.NOT_APPLICABLE,),
        None: (Verdict.INCONCLUSIVE,),
    }[state]
    first = next((result for result in found if result.verdict in telling), None)
    return f"{first.verdict.value}: {excerpt(first.reason)}" if first else "no result"
