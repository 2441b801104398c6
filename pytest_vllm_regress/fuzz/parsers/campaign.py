"""A campaign against the parsers of one environment.

A step is one parser in one format in one round.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ..stepped import Step, SteppedCampaign
from .catalogue import formats_of
from .checker import ParserChecker, ParserName, understands
from .finding import ParserFinding, load
from .formats import PLAIN, PLAIN_ANSWER, Format
from .meaning import Meaning, drawn
from .question import Ask, Observed, Question
from .search import Reduced, search


@dataclasses.dataclass(frozen=True)
class CampaignPlan:
    """What a campaign asks. The journal of a campaign with another plan is not resumed.

    Attributes:
        parsers: names of the parsers; empty for all that are registered.
        rounds: maximum number of rounds; None for no limit.
        minutes: budget of time, over all resumptions; None for no limit.
        examples: answers drawn in each round.
    """

    seed: int = 0
    parsers: tuple[str, ...] = ()
    rounds: int | None = 1
    minutes: float | None = None
    examples: int = 200


@dataclasses.dataclass(frozen=True)
class Covered:
    """A parser with a format that it reads. ``number``: which of the parser's formats."""

    parser: ParserName
    form: Format
    number: int

    @property
    def label(self) -> str:
        return str(self.parser) if not self.number else f"{self.parser}, format {self.number + 1}"


@dataclasses.dataclass
class Coverage:
    """Which parsers can be asked, and why others cannot, by their names."""

    covered: list[Covered] = dataclasses.field(default_factory=list)
    without_writer: list[str] = dataclasses.field(default_factory=list)
    unusable: dict[str, str] = dataclasses.field(default_factory=dict)
    registered: int = 0


def coverage(checker: ParserChecker, names: tuple[str, ...] = ()) -> Coverage:
    """Ask which parsers are registered and which formats they read.

    Raises ``UsageError`` for a name that is not registered.
    """
    usable, unusable = checker.registered()
    everything = {
        name for parser in (*usable, *unusable) for name in (parser.name, *parser.aliases)
    }
    if unknown := sorted(set(names) - everything):
        raise UsageError(
            f"--parser {unknown[0]!r}: {checker.environment} registers {', '.join(sorted(everything))}"
        )
    result = Coverage(registered=sum(1 + len(parser.aliases) for parser in (*usable, *unusable)))
    result.unusable.update(
        {str(parser): "its class cannot be loaded" for parser in unusable if _chosen(parser, names)}
    )
    for parser in usable:
        if _chosen(parser, names):
            _cover(checker, parser, result)
    return result


def _chosen(parser: ParserName, names: tuple[str, ...]) -> bool:
    return not names or not {parser.name, *parser.aliases}.isdisjoint(names)


def _cover(checker: ParserChecker, parser: ParserName, result: Coverage) -> None:
    forms = next(
        (
            forms
            for name in (parser.name, *parser.aliases)
            if (forms := formats_of(parser.kind, name))
        ),
        (),
    )
    if not forms:
        result.without_writer.append(str(parser))
        return
    refusals = []
    for number, form in enumerate(forms):
        plain = Question.of(form.fitted(PLAIN if parser.kind == "tool" else PLAIN_ANSWER), form, ())
        if words := understands(checker, parser, form, plain):
            refusals.append(words)
        else:
            result.covered.append(Covered(parser, form, number))
    if len(refusals) == len(forms):
        result.unusable[str(parser)] = refusals[0]


class ParserCampaign(SteppedCampaign[ParserFinding]):
    """Runs the steps of a plan against one environment: one parser in one format in one round each."""

    def __init__(
        self,
        checker: ParserChecker,
        plan: CampaignPlan,
        folder: Path,
        write_line: Callable[[str], None],
    ) -> None:
        self.checker, self.plan = checker, plan
        self.coverage = coverage(checker, plan.parsers)
        key = {
            "environment": checker.environment,
            "vllm": checker.version,
            "seed": plan.seed,
            "parsers": sorted(plan.parsers),
            "examples": plan.examples,
        }
        super().__init__(key, folder, load, plan.minutes, write_line)

    @property
    def deltas(self) -> int:
        """Number of deltas that were streamed."""
        return sum(step["deltas"] for step in self.steps)

    def all_steps(self) -> Iterator[Step[ParserFinding]]:
        number = 0
        while self.coverage.covered and (self.plan.rounds is None or number < self.plan.rounds):
            meanings = functools.cache(
                functools.partial(drawn, self.plan.examples, self.plan.seed * 1000 + number)
            )
            for covered in self.coverage.covered:
                yield Step(number, covered.label, functools.partial(self._step, covered, meanings))
            number += 1

    def _step(
        self, covered: Covered, meanings: Callable[[], list[Meaning]]
    ) -> tuple[dict[str, Any], list[ParserFinding]]:
        ask: Ask = lambda questions: self.checker.ask(covered.parser, covered.form, questions)  # noqa: E731
        known = [
            _reduced(finding)
            for finding in self.findings
            if finding.parser.name == covered.parser.name
            and finding.parser.kind == covered.parser.kind
        ]
        work = self.checker.work
        deltas, parsing = work.deltas, work.parsing_seconds
        result = search(meanings(), covered.form, ask, known)
        facts = {
            "asked": result.asked,
            "deltas": work.deltas - deltas,
            "parsing": round(work.parsing_seconds - parsing, 3),
            "wrong": [[how, kind, count] for (how, kind), count in sorted(result.wrong.items())],
        }
        return facts, [
            ParserFinding.of(
                reduced.observed, reduced.kinds, covered.parser, self.checker, self.plan.seed
            )
            for reduced in result.findings
        ]

    def report(self, step: Mapping[str, Any], findings: list[ParserFinding]) -> None:
        self._write_line(
            f"  round {step['round'] + 1}, {step['label']}: {step['asked']} answers, {step['deltas']} deltas "
            f"({step['deltas'] / max(step['seconds'], 1e-9):,.0f} a second), {sum(count for _, _, count in step['wrong'])} wrong"
        )
        for finding in findings:
            self._write_line(
                f"    {finding.problem.side}: {finding.problem.kind}: {finding.question.text!r}"
            )
            if finding.question.cuts:
                self._write_line(f"      in pieces {list(finding.question.cuts[0][1].pieces)}")
            self._write_line(f"      {finding.problem.words}")
            self._write_line(f"      vllm-regress replay {self.folder / finding.name}")

    def to_json(self) -> dict[str, Any]:
        """Return what the campaign came to."""
        return {
            **self.key,
            "registered": self.coverage.registered,
            "covered": [covered.label for covered in self.coverage.covered],
            "without_writer": self.coverage.without_writer,
            "unusable": self.coverage.unusable,
            "steps": self.steps,
            "findings": [finding.to_json() for finding in self.findings],
        }


def _reduced(finding: ParserFinding) -> Reduced:
    cut = finding.question.cuts[0] if finding.question.cuts else None
    return Reduced(Observed(finding.question, finding.problem, cut), finding.kinds)
