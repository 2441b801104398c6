"""A campaign: rounds of drawn questions, a budget, and a journal from which a killed campaign resumes.

A step is one part of a round. Its questions come from the seed and the number of its round, and it
knows the findings of earlier steps alone. So the same seed gives the same findings, as far as the
budget reaches, whatever the number of lanes, and wherever the campaign was killed.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import UsageError
from ..util import codec
from ..util.codec import encode, replace
from ..util.store import Store
from .finding import Finding, Problem
from .hunter import CampaignPlan, Hunter, Reply, load
from .reduce import reduce

JOURNAL = "campaign.jsonl"
MAX_FINDINGS = 40
"""Maximum number of findings of one step."""
Part = TypeVar("Part")
Q = TypeVar("Q")
F = TypeVar("F", bound=Finding)


class StepRecord(codec.Document, frozen=True, omit_defaults=False):
    """What a step came to.

    Attributes:
        asked: number of drawn questions; those of reductions do not count.
        counts: number of replies by class, most of which are kinds of problems.
        inconstant: problems that did not show again.
        findings: names of the files.
    """

    round: int
    label: str
    asked: int
    seconds: float
    counts: Mapping[str, int]
    inconstant: int
    findings: tuple[str, ...]


@dataclass(frozen=True)
class _Begun(Generic[Part, Q]):
    """A step that is being asked. ``batches``: functions that wait for the replies."""

    number: int
    part: Part
    asked: int
    batches: Sequence[Callable[[], Sequence[Reply[Q]]]]


class Campaign(Generic[Part, Q, F]):
    """Lets a hunter carry out a plan. Findings and journal are in ``folder``.

    Raises ``UsageError`` if the folder has the journal of another campaign. A larger budget is the
    same campaign.
    """

    def __init__(
        self,
        hunter: Hunter[Any, Part, Q, F],
        plan: CampaignPlan,
        folder: Path,
        write_line: Callable[[str], None],
    ) -> None:
        self.hunter, self.plan, self.folder = hunter, plan, folder
        self.findings: list[F] = []
        self.key = {
            "hunter": hunter.kind.__struct_config__.tag,
            "environment": hunter.environment,
            "version": hunter.version,
            "seed": plan.seed,
            "examples": plan.examples,
            **hunter.options,
        }
        self._write_line, self._told = write_line, 0
        self._journal = Store(
            folder / JOURNAL,
            StepRecord,
            what="the journal of a campaign",
            key=self.key,
            advice="choose another folder with --out",
        )

    @property
    def steps(self) -> list[StepRecord]:
        """The steps that are done."""
        return list(self._journal.entries.values())

    @property
    def seconds(self) -> float:
        """Time that the steps took, over all resumptions."""
        return sum(step.seconds for step in self.steps)

    def run(self) -> None:
        """Run the steps that are not done yet, until the budget is spent."""
        self._journal.lock()
        try:
            self._since = time.monotonic()
            self._resume()
            self._run_steps()
        finally:
            self._journal.close()

    def to_json(self) -> dict[str, Any]:
        """Return what the campaign came to."""
        return {
            **self.key,
            "left_out": self.hunter.left_out,
            "steps": encode(self.steps),
            "findings": encode(self.findings),
        }

    def _resume(self) -> None:
        if not self.steps:
            return
        for name in (name for step in self.steps for name in step.findings):
            with contextlib.suppress(UsageError):  # removed by the user
                self.findings.append(load(self.folder / name))
        self._write_line(f"  {len(self.steps)} steps of {self._journal.path} are done already")

    def _run_steps(self) -> None:
        """Run the steps in order. While one is reduced, the next ones are asked already, as far as
        there are lanes for them."""
        begun: deque[_Begun[Part, Q]] = deque()
        for number, part in self._parts():
            if self._is_over():
                return
            begun.append(self._begin(number, part))
            self._say_what_is_left_out()
            while sum(len(step.batches) for step in begun) >= self.hunter.lanes.size:
                if self._is_over():
                    return
                self._finish(begun.popleft())
        while begun and not self._is_over():
            self._finish(begun.popleft())
        self._say_what_is_left_out()

    def _say_what_is_left_out(self) -> None:
        for name, why in list(self.hunter.left_out.items())[self._told :]:
            self._write_line(f"  left out, {name}: {why}")
        self._told = len(self.hunter.left_out)

    def _is_over(self) -> bool:
        return self.plan.minutes is not None and self.seconds >= self.plan.minutes * 60

    def _parts(self) -> Iterator[tuple[int, Part]]:
        """Yield the parts of all rounds that are not done yet, with the number of the round."""
        for number in itertools.count() if self.plan.rounds is None else range(self.plan.rounds):
            is_empty = True
            for part in self.hunter.parts(self.plan, number):
                is_empty = False
                if self._name(number, part) not in self._journal:
                    yield number, part
            if is_empty:
                return

    def _name(self, number: int, part: Part) -> str:
        return f"{number} {self.hunter.label(part)}"

    def _begin(self, number: int, part: Part) -> _Begun[Part, Q]:
        hunter = self.hunter
        questions = hunter.draw(part, self.plan, number)

        def begin(start: int) -> Callable[[], Sequence[Reply[Q]]]:
            batch = questions[start : start + hunter.batch]
            return hunter.lanes.begin(lambda lane: hunter.ask(lane, part, batch))

        starts = range(0, len(questions), hunter.batch)
        return _Begun(number, part, len(questions), list(map(begin, starts)))

    def _finish(self, step: _Begun[Part, Q]) -> None:
        hunter, counts = self.hunter, Counter[str]()
        search = StepSearch(hunter, step.part, self.plan.seed, self.findings)
        for replies in step.batches:
            for reply in replies():
                counts.update(reply.classes)
                for shown in reply.problems:
                    search.note(*shown)
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        self.findings += search.found
        for finding in search.found:
            finding.save(self.folder)
        record = StepRecord(
            step.number,
            hunter.label(step.part),
            step.asked,
            round(seconds, 3),
            dict(sorted(counts.items())),
            search.inconstant,
            tuple(finding.name for finding in search.found),
        )
        self._journal.add(self._name(step.number, step.part), record)
        self._report(record, search.found)  # afterwards: what was reported is not run again

    def _report(self, step: StepRecord, findings: Sequence[F]) -> None:
        counts = ", ".join(f"{name} {count}" for name, count in step.counts.items())
        self._write_line(
            f"  round {step.round + 1}, {step.label}: {step.asked} questions in "
            f"{step.seconds:.0f} s; {counts or 'as it should be'}"
        )
        if step.inconstant:
            self._write_line(f"    {step.inconstant} problems did not show again")
        for finding in findings:
            self._write_line(f"    {finding.problem}: {finding.problem.words[:300]}")
            for line in self.hunter.describe(finding):
                self._write_line(f"      {line}")
            self._write_line(f"      vllm-regress fuzz replay {self.folder / finding.name}")


class StepSearch(Generic[Part, Q, F]):
    """What is known of one part of a campaign, and what a step finds there.

    Args:
        known: findings that are not to be reported again.
    """

    def __init__(
        self,
        hunter: Hunter[Any, Part, Q, F],
        part: Part,
        seed: int,
        known: Sequence[F],
    ) -> None:
        self.found: list[F] = []
        self.inconstant = 0
        self._hunter, self._part, self._seed = hunter, part, seed
        self._known = [finding for finding in known if hunter.concerns(part, finding)]
        self._seen: set[tuple[object, frozenset[str]]] = set()
        self._fruitless: Counter[object] = Counter()

    def note(self, question: Q, problem: Problem) -> None:
        """Reduce a problem, and report it if no finding explains it."""
        signature = problem.group, self._hunter.kind.traits(question)
        if (
            len(self.found) >= MAX_FINDINGS
            or signature in self._seen
            or self._fruitless[problem.group] >= self._hunter.most_fruitless
            or self._is_known(question, problem)
        ):
            return
        self._seen.add(signature)
        finding = self._reduced(question, problem)
        if finding is None or self._is_known(finding.question, finding.problem):
            self._fruitless[problem.group] += 1
        else:
            self._known.append(finding)
            self.found.append(finding)

    def _is_known(self, question: Q, problem: Problem) -> bool:
        of_kind = sum(finding.problem.group == problem.group for finding in self._known)
        return of_kind >= self._hunter.most_of_kind or any(
            finding.explains(question, problem) for finding in self._known
        )

    def _reduced(self, question: Q, problem: Problem) -> F | None:
        """Return the finding in its smallest form; None if the problem does not show again."""
        hunter, part, effort = self._hunter, self._part, self._hunter.effort(problem)
        if effort.confirmed:
            again = self._again(question, problem)
            if again is None:
                return None
            question, problem = again
        question, problem = reduce(
            question,
            problem,
            lambda question, problem: hunter.simplify(part, question, problem),
            self._look,
            effort,
        )
        if effort.constant and self._again(question, problem) is None:
            return None
        finding = hunter.finding(part, question, problem)
        return replace(finding, seed=self._seed, problem=finding.problem.stored())

    def _again(self, question: Q, problem: Problem) -> tuple[Q, Problem] | None:
        (seen,) = self._look([question])
        same = [shown for shown in seen if shown[1].group == problem.group]
        self.inconstant += not same
        return same[0] if same else None

    def _look(self, questions: Sequence[Q]) -> list[Sequence[tuple[Q, Problem]]]:
        hunter = self._hunter
        replies = hunter.lanes.run(lambda lane: hunter.ask(lane, self._part, questions))
        return [reply.problems for reply in replies]
