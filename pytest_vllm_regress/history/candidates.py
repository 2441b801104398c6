"""Run a case in one candidate (a release or a commit) after another until the search is complete.

A search trusts the symptom and not the range in the case file: REPRODUCED and REGRESSED both mean
that the failure is there.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ..cases.model import Case
from ..cases.rates import Rate
from ..cases.results import TestResult, verdict_of
from ..cases.verdict import Verdict, excerpt
from ..environments.uv import cancelled_by
from ..errors import BuildError, Kind, RegressError
from ..runner.batch import Batch, RunOutcome, digest
from ..runner.progress import Say, about
from ..util.paths import writable_root
from ..util.store import Store
from . import algorithm
from .algorithm import CandidateState

logger = logging.getLogger("vllm_regress.bisection")
_CONFIRMING = " again"


def state_of(results: Sequence[TestResult]) -> CandidateState | None:
    """Return BAD if any test of the case shows the failure, and None if the results are
    INCONCLUSIVE."""
    verdicts = {result.verdict for result in results}
    if any(verdict.shown for verdict in verdicts):
        return CandidateState.BAD
    if Verdict.INCONCLUSIVE in verdicts or not verdicts:
        return None
    return CandidateState.SKIPPED if verdict_of(results).shown is None else CandidateState.GOOD


@dataclass(frozen=True)
class CandidateResult:
    """State of a candidate, and why.

    Of ``runs`` runs with a clear verdict ``bad`` showed the failure; ``seconds`` is the time of all
    runs. ``lost``: the machine failed, by a full disk for example, which says nothing about the
    candidate.
    """

    state: CandidateState
    why: str
    runs: int = 0
    bad: int = 0
    seconds: float = 0.0
    lost: bool = False

    def after(self, before: CandidateResult) -> CandidateResult:
        """Return the result with the runs ``before``, all of which passed."""
        runs, seconds = self.runs + before.runs, self.seconds + before.seconds
        return replace(self, runs=runs, seconds=round(seconds, 1))

    @property
    def in_words(self) -> str:
        """Return "failed 3 of 5 times" or the like."""
        if not self.runs:
            return f"no clear verdict ({self.why})"
        return f"{f'failed {self.bad}' if self.bad else f'passed {self.runs}'} of {self.runs} times"

    @property
    def rate(self) -> str:
        """How often the failure was seen, for example `` (failed 3 of 5 times)``.

        Empty for a single run.
        """
        return f" (failed {self.bad} of {self.runs} times)" if self.runs > 1 else ""


_NOT_RUN = CandidateResult(CandidateState.SKIPPED, "")


def output_file(case_id: str) -> Path:
    """Return the file with the output of builds and pytest of the last bisection of a case."""
    return writable_root() / "bisect" / f"{case_id}.log"


def open_results(
    key: Sequence[str], path: Path | None = None, *, fresh: bool = False
) -> Store[CandidateResult]:
    """Return the results of a search so far, by candidate, locked: an interrupted search resumes.

    ``key`` identifies the search. ``path``: default is a file in the cache, named after the key.
    Raises ``UsageError`` for the file of another search, and while the same search runs.
    """
    store = Store(
        path or writable_root() / "bisect" / f"{digest(*key)[:16]}.jsonl",
        CandidateResult,
        what="the results of a bisection",
        key=list(key),
        advice="remove it, or give --fresh",
        fresh=fresh,
    )
    store.lock()
    return store


@dataclass(frozen=True)
class CandidateRunner:
    """How candidates are run.

    ``build`` builds an environment while another one runs; None disables building ahead.
    ``repeat``: how often an INCONCLUSIVE candidate is run before it is skipped.
    ``trials``: least number of runs per candidate; one failure among them makes it BAD.
    ``rates``: how often the failure showed in earlier runs, where it did so in some only.
    """

    run: Callable[[Sequence[Batch]], RunOutcome]
    build: Callable[[str], None] | None
    say: Say
    repeat: int = 2
    trials: int = 1
    rates: tuple[Rate, ...] = ()


@dataclass(frozen=True)
class BisectPlan:
    """The candidates of a search, oldest first, and the environment of each.

    ``kind``: what the candidates are, for messages.
    ``probes``: see ``algorithm.next_candidate``.
    """

    case: Case
    candidates: tuple[str, ...]
    environments: tuple[str, ...]
    kind: str = "releases"
    probes: int | None = None


def states_in(
    results: Mapping[str, CandidateResult], candidates: Iterable[str]
) -> dict[int, CandidateState]:
    """Return the states known so far, by index of the candidate."""
    return {index: results[name].state for index, name in enumerate(candidates) if name in results}


@dataclass
class CandidateSearch:
    """A bisection over the candidates of ``plan``.

    ``results`` that are there already are not run again.
    """

    plan: BisectPlan
    results: Store[CandidateResult]
    runner: CandidateRunner

    def known(self) -> dict[int, CandidateState]:
        """Return the states known so far, by index of the candidate. One that passed in far fewer
        runs than the rate needs is tried again."""
        needed = self._trials()
        results = {
            name: result
            for name, result in self.results.entries.items()
            if result.state is not CandidateState.GOOD or 2 * result.runs >= needed
        }
        return states_in(results, self.plan.candidates)

    def run(self) -> None:
        """Run candidates until the search is complete.

        Raises ``KeyboardInterrupt`` if a run was interrupted.
        """
        plan = self.plan
        count = len(plan.candidates)
        self.runner.say(
            f"{count} {plan.kind}, {plan.candidates[0]} to {plan.candidates[-1]}: "
            f"at most {algorithm.most_runs(count)} runs if the failure changes once"
        )
        if self.results:
            states = (
                f"{name} {result.state.value}" for name, result in self.results.entries.items()
            )
            self.runner.say(f"resumed: {', '.join(states)}")
        builder, over = ThreadPoolExecutor(1, "build"), threading.Event()
        try:
            while (index := algorithm.next_candidate(count, self.known(), plan.probes)) is not None:
                for environment in self._likely_next(index):
                    builder.submit(self._build_ahead, environment, over)
                before = self.results.entries.get(plan.candidates[index], _NOT_RUN)
                result = self._try(plan.environments[index], self._trials() - before.runs)
                self._record(plan.candidates[index], result.after(before))
        finally:
            over.set()  # or the end of the command would wait for a build that nobody needs
            builder.shutdown(wait=False, cancel_futures=True)

    def _trials(self) -> int:
        """Return how often the next candidate is run: as often as the rates need at which the
        failure showed in others, so that a pass means that it is not there."""
        shown = [result for result in self.results.entries.values() if result.bad]
        bad, runs = sum(r.bad for r in shown), sum(r.runs for r in shown)
        seen = [Rate(self.plan.case.id, "", bad, runs)] if shown else []
        return max(self.runner.trials, *(rate.trials for rate in (*self.runner.rates, *seen)), 1)

    def confirm(self, candidate: str, environment: str, runs: int) -> CandidateResult:
        """Run a candidate again ``runs`` times, unless there is the result of an earlier
        confirmation. With no runs, return the result of the search."""
        name = candidate + _CONFIRMING if runs else candidate
        if name not in self.results:
            self._record(name, self._try(environment, runs))
        return self.results[name]

    def _record(self, candidate: str, result: CandidateResult) -> None:
        self.results.add(candidate, result)
        self.runner.say(
            f"{candidate}: {result.state.value}{result.rate} in {result.seconds:.0f} s{self._steps_left()} ({result.why})"
        )

    def _steps_left(self) -> str:
        """Return how many steps are left, and how long they take if they take as long as the others
        did."""
        left = algorithm.runs_left(len(self.plan.candidates), self.known(), self.plan.probes)
        if not left:
            return ""
        mean = statistics.mean(result.seconds for result in self.results.entries.values())
        return f"; at most {left} step{'s' if left > 1 else ''} left, {about(left * mean)}"

    def _try(self, environment: str, trials: int) -> CandidateResult:
        """Run the case ``trials`` times. Stop early if further runs cannot give another result."""
        started = time.monotonic()
        batch = Batch(environment, (self.plan.case,), {})
        reasons: dict[CandidateState, str] = {}
        bad = done = unclear = 0
        why, lost = "no result", False
        while done < trials and unclear < self.runner.repeat:
            logger.info(
                "try %s in %s: %d of %d trials done", self.plan.case.id, environment, done, trials
            )
            outcome = self.runner.run([batch])
            if outcome.interrupted:
                raise KeyboardInterrupt
            results = outcome.run.results
            state = state_of(results)
            why = _why(results, state)
            lost = bool(outcome.lost)
            if state is CandidateState.SKIPPED or (
                state is None and (lost or outcome.unbuilt or _fails_to_import(results))
            ):
                break
            if state is None:
                unclear += 1
                continue
            done += 1
            bad += state is CandidateState.BAD
            reasons.setdefault(state, why)
        seconds = round(time.monotonic() - started, 1)
        overall = CandidateState.GOOD if done == trials else CandidateState.SKIPPED
        if bad:
            overall = CandidateState.BAD
        lost &= overall is CandidateState.SKIPPED
        return CandidateResult(overall, reasons.get(overall, why), done, bad, seconds, lost)

    def _likely_next(self, index: int) -> list[str]:
        """Return the environments that follow if this candidate is bad, and if it is good."""
        if self.runner.build is None:
            return []
        plan = self.plan
        following = (
            algorithm.next_candidate(
                len(plan.candidates), {**self.known(), index: state}, plan.probes
            )
            for state in (CandidateState.BAD, CandidateState.GOOD)
        )
        return list(dict.fromkeys(plan.environments[i] for i in following if i is not None))

    def _build_ahead(self, environment: str, over: threading.Event) -> None:
        assert self.runner.build is not None
        logger.debug("build %s ahead", environment)
        try:
            with cancelled_by(over):
                self.runner.build(environment)
        except RegressError as error:
            problem = "cannot be built" if isinstance(error, BuildError) else "cannot be used"
            self.runner.say(f"{environment} {problem}; it may not be needed")


def _fails_to_import(results: Sequence[TestResult]) -> bool:
    """Return whether an exception ended the import of the package.

    Unlike a slow import, that is the same in every run.
    """
    observed = (result.observation for result in results)
    return any(o and o.phase == "import" and o.kind is Kind.EXCEPTION for o in observed)


def _why(results: Sequence[TestResult], state: CandidateState | None) -> str:
    first = next((result for result in results if state_of([result]) is state), None)
    return f"{first.verdict.value}: {excerpt(first.reason)}" if first else "no result"
