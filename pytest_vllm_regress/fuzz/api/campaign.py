"""A campaign against the servers of one environment. A step is one operation in one round."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import ChildError, NotAtWork, Unsupported, UsageError
from ..stepped import Step, SteppedCampaign
from .checker import ApiChecker
from .drawing.bases import routes_of
from .drawing.description import Operation, operations
from .drawing.draw import Drawer
from .finding import ApiFinding, finding_of, load
from .growth import candidates, growth_problem
from .oracle import Problem, problem
from .question import Question
from .reduce import reduce
from .reply import Reply
from .servers import SERVERS

MAX_FRUITLESS = 3
"""Maximum number of questions of one group and step that are reduced to nothing new, or do not show
their problem again."""


@dataclasses.dataclass(frozen=True)
class CampaignPlan:
    """What a campaign asks. The journal of a campaign with another plan is not resumed.

    Attributes:
        servers: kinds of servers; empty for all.
        routes: routes; empty for all.
        rounds: maximum number of rounds; None for no limit.
        minutes: budget of time, over all resumptions; None for no limit.
        examples: questions of each operation in a round.
        growth: equal requests of each measurement of memory; 0 for none.
    """

    seed: int = 0
    servers: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    rounds: int | None = 1
    minutes: float | None = None
    examples: int = 80
    growth: int = 0


class ApiCampaign(SteppedCampaign[ApiFinding]):
    """Runs the steps of a plan.

    ``refused``: kinds of servers that the release does not have, and why.
    """

    def __init__(
        self,
        checker: ApiChecker,
        plan: CampaignPlan,
        folder: Path,
        write_line: Callable[[str], None],
    ) -> None:
        if unknown := sorted(set(plan.servers) - set(SERVERS)):
            raise UsageError(f"--server {unknown[0]!r}: allowed are {', '.join(SERVERS)}")
        self.checker, self.plan = checker, plan
        self.refused: dict[str, str] = {}
        self._drawers: dict[str, tuple[Drawer, list[Operation]]] = {}
        key = {
            "environment": checker.environment,
            "vllm": checker.version,
            "seed": plan.seed,
            "servers": sorted(plan.servers),
            "routes": sorted(plan.routes),
            "examples": plan.examples,
            "growth": plan.growth,
        }
        super().__init__(key, folder, load, plan.minutes, write_line)

    @property
    def asked(self) -> int:
        """Number of requests that were drawn; those of reductions do not count."""
        return sum(step["asked"] for step in self.steps)

    def all_steps(self) -> Iterator[Step[ApiFinding]]:
        number, active = 0, True
        while active and (self.plan.rounds is None or number < self.plan.rounds):
            active = False
            for kind in self.plan.servers or SERVERS:
                for operation in self._operations(kind):
                    active = True
                    label = f"{kind}: {operation.label}"
                    yield Step(
                        number, label, functools.partial(self._step, kind, operation, number)
                    )
                    if self.plan.growth:
                        measure = functools.partial(self._measure, kind, operation, number)
                        yield Step(number, f"{label}: memory", measure)
            number += 1

    def _operations(self, kind: str) -> list[Operation]:
        """Return the operations of a server that the plan covers, from its own description."""
        if kind in self.refused:
            return []
        if kind not in self._drawers:
            try:
                document = self.checker.description(kind)
            except (Unsupported, ChildError) as error:
                self.refused[kind] = str(error.args[0])
                self._write_line(f"  no {kind} server: {self.refused[kind]}")
                return []
            own = routes_of(kind)
            covered = [
                operation
                for operation in operations(document)
                if (own is None or operation.route in own)
                and (not self.plan.routes or operation.route in self.plan.routes)
            ]
            self._drawers[kind] = Drawer(kind, document), covered
        return self._drawers[kind][1]

    def _step(
        self, kind: str, operation: Operation, number: int
    ) -> tuple[dict[str, Any], list[ApiFinding]]:
        questions = self._drawers[kind][0].questions(
            operation, self.plan.seed, number, self.plan.examples
        )
        replies = self.checker.ask(questions)
        known = {finding.key for finding in self.findings}
        new: list[ApiFinding] = []
        fruitless: Counter[tuple[str, str]] = Counter()
        for question, reply in zip(questions, replies, strict=True):
            seen = problem(question, reply)
            if seen is None or fruitless[seen.group] == MAX_FRUITLESS:
                continue
            if any(seen.is_explained_by(group, question) for group in known):
                continue
            reduced = self._reduced(question, seen)
            if reduced is None or reduced.key in known:
                fruitless[seen.group] += 1
            else:
                known.add(reduced.key)
                new.append(reduced)
        statuses = Counter(_class_of(reply) for reply in replies)
        return {
            "asked": len(questions),
            "statuses": dict(sorted(statuses.items())),
            "fruitless": fruitless.total(),
        }, new

    def _measure(
        self, kind: str, operation: Operation, number: int
    ) -> tuple[dict[str, Any], list[ApiFinding]]:
        """Measure the memory of an accepted and of a refused request."""
        questions = self._drawers[kind][0].questions(
            operation, self.plan.seed, number, self.plan.examples
        )
        replies = self.checker.ask(questions)
        known, new = {finding.key for finding in self.findings}, []
        measured = list(candidates(questions, replies))
        for question in measured:
            with contextlib.suppress(
                NotAtWork
            ):  # the server ended, which the questions of the operation report
                found = growth_problem(
                    question, lambda one: self.checker.growth(one, self.plan.growth)
                )
                if found and found.group not in known:
                    known.add(found.group)
                    new.append(finding_of(question, found, "", self.checker, self.plan.seed))
        return {"asked": len(measured) * self.plan.growth, "statuses": {}, "fruitless": 0}, new

    def _reduced(self, question: Question, seen: Problem) -> ApiFinding | None:
        """Return the finding of a problem that shows again; None if it does not."""
        (again,) = self.checker.ask([question])
        repeated = problem(question, again)
        if repeated is None or repeated.group != seen.group:
            return None
        smallest, found = reduce(question, repeated, self.checker.ask)
        return finding_of(
            smallest, found.narrowed(smallest), again.log, self.checker, self.plan.seed
        )

    def report(self, step: Mapping[str, Any], findings: list[ApiFinding]) -> None:
        statuses = ", ".join(f"{name} {count}" for name, count in step["statuses"].items())
        self._write_line(
            f"  round {step['round'] + 1}, {step['label']}: {step['asked']} requests in {step['seconds']:.0f} s: {statuses}"
        )
        for finding in findings:
            self._write_line(f"    {finding.problem.outcome}: {finding.problem.key}")
            self._write_line(f"      {finding.problem.words[:300]}")
            self._write_line(f"      {finding.question.curl()[:300]}")
            self._write_line(f"      vllm-regress replay {self.folder / finding.name}")

    def to_json(self) -> dict[str, Any]:
        """Return what the campaign came to."""
        return {
            **self.key,
            "refused": self.refused,
            "steps": self.steps,
            "findings": [finding.to_json() for finding in self.findings],
        }


def _class_of(reply: Reply) -> str:
    return f"{reply.status // 100}xx" if reply.status else "none"
