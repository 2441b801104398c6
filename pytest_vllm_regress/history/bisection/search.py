"""Run a case in one candidate (a release or a commit) after another until the search is complete.

A search trusts the symptom and not the range in the case file: REPRODUCED and REGRESSED both mean
that the failure is there.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ...cases.model import Case
from ...cases.results import TestResult
from ...cases.verdict import Verdict, excerpt
from ...errors import BuildError, RegressError
from ...runner.batch import Batch, RunOutcome
from ...runner.progress import Say, about
from . import algorithm
from .algorithm import State
from .search_log import CandidateResult, SearchLog

logger = logging.getLogger("vllm_regress.bisection")
_BAD = [verdict for verdict in Verdict if verdict.shown]
_GOOD = [verdict for verdict in Verdict if verdict.shown is False]
_CONFIRMING = " again"
_IMPORT_ERROR = re.compile(r"\[import\] (?:[\w ]+: )?[\w.]*(?:Error|Exception|Exit)\b")


def state_of(results: Sequence[TestResult]) -> State | None:
    """Return BAD if any test of the case shows the failure, and None if the results are
    INCONCLUSIVE."""
    verdicts = {result.verdict for result in results}
    if verdicts & set(_BAD):
        return State.BAD
    if Verdict.INCONCLUSIVE in verdicts or not verdicts:
        return None
    return State.GOOD if verdicts & set(_GOOD) else State.SKIPPED


@dataclasses.dataclass(frozen=True)
class CandidateRunner:
    """How candidates are run.

    ``build`` builds an environment while another one runs; None disables building ahead.
    """

    run: Callable[[Sequence[Batch]], RunOutcome]
    build: Callable[[str], None] | None
    say: Say


@dataclasses.dataclass(frozen=True)
class Plan:
    """The candidates of a search, oldest first, and the environment of each.

    ``kind``: what the candidates are, for messages.
    ``repeat``: how often an INCONCLUSIVE candidate is run before it is skipped.
    ``trials``: runs per candidate; one failure among them makes it BAD.
    ``probes``: see ``algorithm.next_candidate``.
    """

    case: Case
    candidates: tuple[str, ...]
    environments: tuple[str, ...]
    kind: str = "releases"
    repeat: int = 2
    trials: int = 1
    probes: int | None = None


class Search:
    """A bisection over the candidates of ``plan``.

    Results that ``search_log`` already has are not run again.
    """

    def __init__(self, plan: Plan, search_log: SearchLog, runner: CandidateRunner) -> None:
        self._plan = plan
        self._log = search_log
        self._runner = runner

    def known(self) -> dict[int, State]:
        """Return the states known so far, by index of the candidate."""
        results = self._log.results
        return {
            index: results[name].state
            for index, name in enumerate(self._plan.candidates)
            if name in results
        }

    def run(self) -> None:
        """Run candidates until the search is complete.

        Raises ``KeyboardInterrupt`` if a run was interrupted.
        """
        plan = self._plan
        count = len(plan.candidates)
        self._runner.say(
            f"{count} {plan.kind}, {plan.candidates[0]} to {plan.candidates[-1]}: "
            f"at most {algorithm.most_runs(count)} runs if the failure changes once"
        )
        if self._log.results:
            states = ", ".join(
                f"{name} {result.state.value}" for name, result in self._log.results.items()
            )
            self._runner.say(f"resumed: {states}")
        builder = ThreadPoolExecutor(1, "build")
        try:
            while (index := algorithm.next_candidate(count, self.known(), plan.probes)) is not None:
                for environment in self._likely_next(index):
                    builder.submit(self._build_ahead, environment)
                self._record(
                    plan.candidates[index], self._try(plan.environments[index], plan.trials)
                )
        finally:
            builder.shutdown(wait=False, cancel_futures=True)

    def confirm(self, candidate: str, environment: str, runs: int) -> CandidateResult:
        """Run a candidate again ``runs`` times, unless the log has the result of an earlier
        confirmation."""
        name = candidate + _CONFIRMING
        if name not in self._log.results:
            self._record(name, self._try(environment, runs))
        return self._log.results[name]

    def result(self, candidate: str) -> CandidateResult:
        """Return the result of a candidate that was tried."""
        return self._log.results[candidate]

    def _record(self, candidate: str, result: CandidateResult) -> None:
        self._log.add(candidate, result)
        self._runner.say(
            f"{candidate}: {result.state.value}{result.rate} in {result.seconds:.0f} s{self._steps_left()} ({result.why})"
        )

    def _steps_left(self) -> str:
        """Return how many steps are left, and how long they take if they take as long as the others
        did."""
        left = algorithm.runs_left(len(self._plan.candidates), self.known(), self._plan.probes)
        if not left:
            return ""
        mean = statistics.mean(result.seconds for result in self._log.results.values())
        return f"; at most {left} step{'s' if left > 1 else ''} left, {about(left * mean)}"

    def _try(self, environment: str, trials: int) -> CandidateResult:
        """Run the case ``trials`` times. Stop early if further runs cannot give another result."""
        started = time.monotonic()
        batch = Batch(environment, (self._plan.case,), {})
        reasons: dict[State, str] = {}
        bad = done = unclear = 0
        why = "no result"
        while done < trials and unclear < self._plan.repeat:
            logger.info(
                "try %s in %s: %d of %d trials done", self._plan.case.id, environment, done, trials
            )
            outcome = self._runner.run([batch])
            if outcome.interrupted:
                raise KeyboardInterrupt
            results = outcome.run.results
            state = state_of(results)
            why = _why(results, state)
            if state is State.SKIPPED or (
                state is None and (outcome.unbuilt or _fails_to_import(results))
            ):
                break
            if state is None:
                unclear += 1
                continue
            done += 1
            bad += state is State.BAD
            reasons.setdefault(state, why)
        seconds = round(time.monotonic() - started, 1)
        overall = State.BAD if bad else State.GOOD if done == trials else State.SKIPPED
        return CandidateResult(overall, reasons.get(overall, why), done, bad, seconds)

    def _likely_next(self, index: int) -> list[str]:
        """Return the environments that follow if this candidate is bad, and if it is good."""
        if self._runner.build is None:
            return []
        plan = self._plan
        outcomes = ({**self.known(), index: state} for state in (State.BAD, State.GOOD))
        following = (
            algorithm.next_candidate(len(plan.candidates), outcome, plan.probes)
            for outcome in outcomes
        )
        return list(
            dict.fromkeys(
                plan.environments[next_index] for next_index in following if next_index is not None
            )
        )

    def _build_ahead(self, environment: str) -> None:
        assert self._runner.build is not None
        logger.debug("build %s ahead", environment)
        try:
            self._runner.build(environment)
        except RegressError as error:
            problem = "cannot be built" if isinstance(error, BuildError) else "cannot be used"
            self._runner.say(f"{environment} {problem}; it may not be needed")


def _fails_to_import(results: Sequence[TestResult]) -> bool:
    """Return whether an exception ended the import of the package.

    Unlike a slow import, that is the same in every run.
    """
    return any(
        _IMPORT_ERROR.match(text) for result in results for text in (result.symptom, result.dossier)
    )


def _why(results: Sequence[TestResult], state: State | None) -> str:
    deciding = {
        State.BAD: _BAD,
        State.GOOD: _GOOD,
        State.SKIPPED: (Verdict.NOT_APPLICABLE,),
        None: (Verdict.INCONCLUSIVE,),
    }[state]
    first = next((result for result in results if result.verdict in deciding), None)
    return f"{first.verdict.value}: {excerpt(first.reason)}" if first else "no result"
