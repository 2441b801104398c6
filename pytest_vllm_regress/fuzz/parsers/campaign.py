"""A campaign against the parsers of one environment: rounds of drawn answers, a budget, and a journal by which a killed campaign goes on.

A step is one parser in one format in one round. Steps have their answers from the seed and the number of the round, and know the findings of earlier
steps alone, so the same seed gives the same findings, as far as the budget reaches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...util.documents import load_json
from ...util.files import write_atomically
from .catalogue import formats_of
from .checker import ParserChecker, ParserName, understands
from .finding import ParserFinding, load
from .formats import PLAIN, PLAIN_ANSWER, Format
from .meaning import Meaning, drawn
from .question import Ask, Observed, Question
from .search import Reduced, Round, search

JOURNAL = "campaign.json"
_MAX_JOURNAL = 32 << 20


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
    """Ask which parsers are registered and which formats they read. Raises ``UsageError`` for a name that is not registered."""
    usable, unusable = checker.registered()
    everything = {name for parser in (*usable, *unusable) for name in (parser.name, *parser.aliases)}
    if unknown := sorted(set(names) - everything):
        raise UsageError(f"--parser {unknown[0]!r}: {checker.environment} registers {', '.join(sorted(everything))}")
    result = Coverage(registered=sum(1 + len(parser.aliases) for parser in (*usable, *unusable)))
    result.unusable.update({str(parser): "its class cannot be loaded" for parser in unusable if _chosen(parser, names)})
    for parser in usable:
        if _chosen(parser, names):
            _cover(checker, parser, result)
    return result


def _chosen(parser: ParserName, names: tuple[str, ...]) -> bool:
    return not names or not {parser.name, *parser.aliases}.isdisjoint(names)


def _cover(checker: ParserChecker, parser: ParserName, result: Coverage) -> None:
    forms = next((forms for name in (parser.name, *parser.aliases) if (forms := formats_of(parser.kind, name))), ())
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


class ParserCampaign:
    """Runs the steps of a plan against one environment, and keeps its journal and its findings in ``folder``."""

    def __init__(
        self, checker: ParserChecker, plan: CampaignPlan, folder: Path, write_line: Callable[[str], None]
    ) -> None:
        self.checker, self.plan, self.folder = checker, plan, folder
        self.coverage = coverage(checker, plan.parsers)
        self.findings: list[ParserFinding] = []
        self.steps: list[dict[str, Any]] = []
        self._write_line = write_line
        self._clock = time.monotonic
        self._spent = 0.0
        self._resume()

    @property
    def deltas(self) -> int:
        """Number of deltas that were streamed."""
        return sum(step["deltas"] for step in self.steps)

    @property
    def seconds(self) -> float:
        """Time that the steps took."""
        return float(sum(step["seconds"] for step in self.steps))

    def run(self) -> None:
        """Run the steps that are not done yet, until the budget is spent."""
        done = {(step["round"], step["label"]) for step in self.steps}
        began = self._clock() - self._spent
        for number, covered, meanings in self._steps():
            if (number, covered.label) in done:
                continue
            self._spent = self._clock() - began
            if self.plan.minutes is not None and self._spent >= self.plan.minutes * 60:
                return
            self._step(number, covered, meanings())
            self._spent = self._clock() - began
            self._write_journal()

    def _steps(self) -> Iterator[tuple[int, Covered, Callable[[], list[Meaning]]]]:
        number = 0
        while self.coverage.covered and (self.plan.rounds is None or number < self.plan.rounds):
            cached: list[list[Meaning]] = []

            def meanings(number: int = number, cached: list[list[Meaning]] = cached) -> list[Meaning]:
                if not cached:
                    cached.append(drawn(self.plan.examples, self.plan.seed * 1000 + number))
                return cached[0]

            for covered in self.coverage.covered:
                yield number, covered, meanings
            number += 1

    def _step(self, number: int, covered: Covered, meanings: list[Meaning]) -> None:
        ask: Ask = lambda questions: self.checker.ask(covered.parser, covered.form, questions)  # noqa: E731
        known = [
            _reduced(finding)
            for finding in self.findings
            if finding.parser.name == covered.parser.name and finding.parser.kind == covered.parser.kind
        ]
        work = self.checker.work
        deltas, parsing, began = work.deltas, work.parsing_seconds, self._clock()
        result = search(meanings, covered.form, ask, known)
        new = [
            ParserFinding.of(reduced.observed, reduced.kinds, covered.parser, self.checker, self.plan.seed)
            for reduced in result.findings
        ]
        self.findings += new
        self.steps.append(
            {
                "round": number,
                "label": covered.label,
                "asked": result.asked,
                "deltas": work.deltas - deltas,
                "parsing": round(work.parsing_seconds - parsing, 3),
                "seconds": round(self._clock() - began, 3),
                "wrong": [[how, kind, count] for (how, kind), count in sorted(result.wrong.items())],
                "findings": [finding.name for finding in new],
            }
        )
        self._report(number, covered, result, new)

    def _report(self, number: int, covered: Covered, result: Round, new: list[ParserFinding]) -> None:
        step = self.steps[-1]
        self._write_line(
            f"  round {number + 1}, {covered.label}: {result.asked} answers, {step['deltas']} deltas "
            f"({step['deltas'] / max(step['seconds'], 1e-9):,.0f} a second), {sum(result.wrong.values())} wrong"
        )
        for finding in new:
            path = finding.save(self.folder)
            self._write_line(f"    {finding.problem.side}: {finding.problem.kind}: {finding.question.text!r}")
            if finding.question.cuts:
                self._write_line(f"      in pieces {list(finding.question.cuts[0][1].pieces)}")
            self._write_line(f"      {finding.problem.words}")
            self._write_line(f"      vllm-regress replay {path}")

    def _resume(self) -> None:
        """Take over the journal in the folder, if it is of the same plan. A larger budget is the same plan."""
        path = self.folder / JOURNAL
        if not path.exists():
            return
        journal = load_json(path, _MAX_JOURNAL, what="the journal of a campaign")
        if not isinstance(journal, dict) or journal.get("plan") != self._key():
            raise UsageError(
                f"{path}: the journal of another campaign (environment, seed, parsers or examples differ). Choose another folder with --out"
            )
        self.steps, self._spent = journal["steps"], journal["spent"]
        for name in (name for step in self.steps for name in step["findings"]):
            with contextlib.suppress(UsageError):  # removed by the user
                self.findings.append(load(self.folder / name))
        self._write_line(f"  {len(self.steps)} steps of {path} are done already")

    def _key(self) -> dict[str, Any]:
        return {
            "environment": self.checker.environment,
            "vllm": self.checker.version,
            "seed": self.plan.seed,
            "parsers": sorted(self.plan.parsers),
            "examples": self.plan.examples,
        }

    def _write_journal(self) -> None:
        journal = {"plan": self._key(), "spent": round(self._spent, 3), "steps": self.steps}
        write_atomically(self.folder / JOURNAL, json.dumps(journal, indent=1, ensure_ascii=False) + "\n")

    def to_json(self) -> dict[str, Any]:
        """Return what the campaign came to."""
        return {
            **self._key(),
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
