"""The exercise on the base of a patch and with it: the answers of the base are kept for the next
patch to it, and what differs is asked again on both sides."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...cases.proofs.proof import lock_id
from ...engines.probe import TARGET
from ...engines.session import Session
from ...engines.settings import KEPT_REQUESTS
from ...engines.standalone import bare_session
from ...errors import RegressError
from ...history.patch import PatchComparison, Recorded
from ...runner.batch import digest
from ...util.codec import Document
from ...util.paths import writable_root
from ...util.report import Section
from ...util.store import Store
from .differences import ERROR, Answers, Difference, Grade, clearest, differences
from .parsers import PARSERS, parser_answers
from .station_run import HOST, StationRun
from .workload import FOLDER, described, stations

Say = Callable[[str], None]
SIDE_S = 300.0
"""Time after which no station is begun; all of them take two minutes on two cores."""
RUNS = 3
"""How often both sides must give different answers."""
_MAX_SHOWN = 5
_WORDS = {Grade.BREAKS: "breaks", Grade.RESULT: "changes", Grade.COURSE: "changes"}


class StationAnswers(Document, frozen=True):
    """Answers of one station of a base. ``runs``: how often it was asked; an answer that differed
    from run to run is None."""

    answers: dict[str, Any]
    runs: int = 1

    def with_run(self, answers: Answers) -> StationAnswers:
        """Return what this run and another one have in common."""
        names = {**self.answers, **answers}
        both = {
            name: self.answers[name] if self.answers.get(name) == answers.get(name) else None
            for name in names
        }
        return StationAnswers(both, self.runs + 1)


@dataclass(frozen=True)
class ExerciseComparison:
    """What a patch changes in the answers to the exercise, the clearest difference first.

    ``compared``: number of answers. ``unstable``: number of those that differ by themselves.
    ``left_out``: stations for which there was no time.
    """

    found: tuple[Difference, ...]
    compared: int
    unstable: int = 0
    left_out: tuple[str, ...] = ()

    def broken(self) -> tuple[Difference, ...]:
        """Return the errors, hangs, crashes and leftovers where there was an answer."""
        return tuple(one for one in self.found if one.grade is Grade.BREAKS)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--format json``, with all differences."""
        return {
            "compared": self.compared,
            "unstable": self.unstable,
            "left_out": self.left_out,
            "differences": [
                {**one.to_json(), "request": described(one.name)} for one in self.found
            ],
        }

    def summary(self) -> str:
        """Return one line."""
        out = f"; out of time: {', '.join(self.left_out)}" if self.left_out else ""
        if not self.found:
            return f"The exercise: {self.compared} answers, the same on both sides{out}"
        by_station = Counter(one.name.partition("/")[0] for one in self.found)
        places = ", ".join(f"{name} {number}" for name, number in by_station.most_common(4))
        broken = f", {len(self.broken())} of them with a failure" if self.broken() else ""
        return (
            f"The exercise: {len(self.found)} of {self.compared} answers differ{broken} ({places}"
            f"{' and others' * (len(by_station) > 4)}){out}"
        )

    def section(self) -> Section:
        """Return the summary and the clearest differences."""
        lines = tuple(_shown(one) for one in clearest(self.found, _MAX_SHOWN))
        return Section(parts=[self.summary(), *([lines] if lines else [])])


def _shown(one: Difference) -> str:
    request = described(one.name)
    what = f"{one.name}{f' ({request})' if request else ''}"
    return f"{_WORDS[one.grade]} {what}: {one.where}: before {one.before}, after {one.after}"


class Exercise:
    """The stations with these names in one environment."""

    def __init__(self, session: Session, environment: str, names: Collection[str]) -> None:
        self._session, self._environment, self._names = session, environment, names

    def run(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each station that begins in time with its answers, by act and request."""
        end = time.monotonic() + SIDE_S
        for station in stations():
            if station.name in self._names and time.monotonic() < end:
                answers = StationRun(self._session, self._environment, station).run()
                yield station.name, _finite(answers)
        if PARSERS in self._names and time.monotonic() < end:
            try:
                answers = parser_answers(self._session, self._environment)
            except RegressError as error:
                answers = {"start": {ERROR: [type(error).__name__, str(error)[:200]]}}
            yield PARSERS, _finite(answers)


def _finite(value: Any) -> Any:
    """Return plain values with texts for NaN and infinite numbers, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(member) for member in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def compare_exercise(
    comparison: PatchComparison,
    say: Say,
    *,
    base_again: bool = False,
    recorded: Recorded = contextlib.nullcontext,
) -> ExerciseComparison:
    """Run the exercise on the base, unless its answers are known, and with the patch.

    ``base_again``: also if they are known. ``recorded``: provides the block in which processes with
    the patch are started.
    """
    kept, names = _kept_answers(comparison, base_again), all_names()
    with bare_session(say, device="sim", leftovers=KEPT_REQUESTS) as session:
        if missing := [name for name in names if name not in kept]:
            say(f"running the exercise in {comparison.before}")
            for name, answers in Exercise(session, comparison.before, missing).run():
                kept.add(name, StationAnswers(answers))
        say(f"running the exercise in {comparison.after}")
        with recorded():
            after = dict(Exercise(session, comparison.after, list(kept)).run())
        found = _found(kept, after)
        sure = {one.name for one in found}
        for runs in range(2, RUNS + 1):
            sure &= _differing_again(comparison, session, kept, sure, runs, say)
    stable = [one for one in found if one.name in sure]
    left_out = tuple(name for name in names if name not in after)
    return ExerciseComparison(
        tuple(stable), _count(kept, after), len(found) - len(stable), left_out
    )


def _differing_again(
    comparison: PatchComparison,
    session: Session,
    kept: Store[StationAnswers],
    answers: Collection[str],
    runs: int,
    say: Say,
) -> set[str]:
    """Run the stations of these answers again, on the base only if it was run less than ``runs``
    times so far. Return the names of the answers that still differ."""
    names = sorted({name.partition("/")[0] for name in answers})
    if not names:
        return set()
    say(f"running {', '.join(names)} of the exercise again: what differs must always differ")
    again = dict(Exercise(session, comparison.after, names).run())
    if unsure := [name for name in names if kept[name].runs < runs]:
        for name, before in Exercise(session, comparison.before, unsure).run():
            kept.add(name, kept[name].with_run(before))
    found = _found(kept, {name: again[name] for name in again if kept[name].runs >= runs})
    return {one.name for one in found}


def all_names() -> list[str]:
    """Return the names of all stations."""
    return [*(station.name for station in stations()), PARSERS]


def _kept_answers(comparison: PatchComparison, fresh: bool) -> Store[StationAnswers]:
    below = comparison.base_environment
    name = digest("exercise", comparison.before, below, lock_id(below), __version__, workload_id())
    path = writable_root() / "try-bases" / f"exercise-{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        path.unlink(missing_ok=True)
    return Store(path, StationAnswers, what="the exercise on a base")


def workload_id() -> str:
    """Return a digest of what the answers depend on beside the code under test."""
    own = [*FOLDER.glob("*.toml"), *Path(__file__).parent.glob("*.py")]
    own.append(TARGET / "hosts" / f"{HOST.rpartition('.')[2]}.py")
    content = b"".join(path.read_bytes() for path in sorted(own))
    return hashlib.sha256(content + version("hypothesis").encode()).hexdigest()


def _found(kept: Store[StationAnswers], after: Mapping[str, Answers]) -> list[Difference]:
    """Return the differences of all stations, the clearest first."""
    return sorted(
        replace(one, name=f"{name}/{one.name}")
        for name in after
        for one in differences(kept[name].answers, after[name])
    )


def _count(kept: Store[StationAnswers], names: Collection[str]) -> int:
    return sum(len(kept[name].answers) for name in names)
