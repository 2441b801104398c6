"""The hunter of ``vllm-regress fuzz parsers``: answers with tool calls and reasoning, written in
each parser's own formats and streamed in every cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from ...engines.inputs.formats import Format, Meaning, formats_of
from ...errors import ChildError, UsageError
from ...util.codec import Meta, replace
from ..drawing import drawn
from ..finding import Finding, Problem
from ..hunter import CampaignPlan, Hunter, Reply
from ..reduce import Effort, smaller_documents
from .meaning import BASIC, PLAIN, TOOLS, features, meanings
from .parser_oracle import NO_ANSWER, WHOLE
from .parser_process import ParserName, ParserProcess
from .parser_question import Cut, CutKind, ParserQuestion, observations

COARSE = frozenset({CutKind.SEVERAL, CutKind.RUNS, CutKind.ONCE})
"""Cuts in which a delta holds more than one token."""
_ONE_CAUSE = ("no end", "raises", "no answer", "death")
"""Kinds of problems that have one cause, whatever the answer contains: the place of an exception
belongs to the kind."""


class ParserFinding(Finding, frozen=True, tag="parsers"):
    """A parser's failure.

    Attributes:
        kinds: kinds of cuts that show it; empty if the whole text does.
    """

    parser: ParserName
    question: ParserQuestion
    kinds: Annotated[tuple[CutKind, ...], Meta(max_length=10)] = ()

    @property
    def subject(self) -> str:
        return f"parser-{self.parser.name.replace('_', '-')}-{self.parser.kind}"

    @property
    def identity(self) -> object:
        parser, problem = self.parser, self.problem
        key = [parser.kind, parser.name, self.question.text, problem.key, problem.kind]
        return [*key, [list(cut.pieces) for cut in self.question.cuts]]

    @staticmethod
    def traits(question: ParserQuestion) -> frozenset[str]:
        return features(question.meaning) | {f"cut in {cut.kind}" for cut in question.cuts}

    def explains(self, question: ParserQuestion, problem: Problem) -> bool:
        """As for all findings, but in a cut that shows the finding, too.

        What only coarse cuts show comes from the cut and hardly from the features: such problems of
        one kind count as one.
        """
        if self.problem.group != problem.group:
            return False
        if problem.kind.startswith(_ONE_CAUSE):
            return True
        for cut in question.cuts if self.kinds else ():
            if cut.kind in COARSE and COARSE.issuperset(self.kinds):
                return True
            if cut.kind not in COARSE and cut.kind not in self.kinds:
                return False
        used = features(self.question.meaning)
        return (used - BASIC or used) <= features(question.meaning)


@dataclass(frozen=True)
class ReadFormat:
    """A parser with a format that it reads. ``number``: which of the parser's formats."""

    parser: ParserName
    form: Format
    number: int = 0

    def __str__(self) -> str:
        return str(self.parser) if not self.number else f"{self.parser}, format {self.number + 1}"


class ParserHunter(Hunter[ParserProcess, ReadFormat, ParserQuestion, ParserFinding]):
    """Asks the parsers of one environment. ``names``: those that are asked; empty for all."""

    kind = ParserFinding
    lane = ParserProcess
    batch = 20
    most_of_kind = 4
    right = "the parser answers what was meant"

    def __init__(
        self,
        processes: Sequence[ParserProcess],
        environment: str,
        versions: Mapping[str, str],
        names: Sequence[str] = (),
    ) -> None:
        super().__init__(processes, environment, versions, {"parsers": sorted(names)})
        self._names = names
        self._covered: list[ReadFormat] | None = None

    def parts(self, plan: CampaignPlan, number: int) -> list[ReadFormat]:
        return self.readable()

    def readable(self) -> list[ReadFormat]:
        """Return each parser with the formats that it reads."""
        if self._covered is None:
            self._covered = list(self._cover())
        return self._covered

    def _cover(self) -> Iterator[ReadFormat]:
        """Yield what can be asked, and note why other parsers cannot.

        Raises ``UsageError`` for a name that is not registered.
        """
        usable, unusable = self.lanes.first.registered()
        everything = {
            name for parser in (*usable, *unusable) for name in (parser.name, *parser.aliases)
        }
        if unknown := sorted({*self._names} - everything):
            raise UsageError(
                f"--parser {unknown[0]!r}: {self.environment} registers "
                f"{', '.join(sorted(everything))}"
            )
        for parser in filter(self._is_chosen, unusable):
            self.left_out[str(parser)] = "its class cannot be loaded"
        for parser in filter(self._is_chosen, usable):
            yield from self._formats(parser)

    def _is_chosen(self, parser: ParserName) -> bool:
        return not self._names or not {parser.name, *parser.aliases}.isdisjoint(self._names)

    def _formats(self, parser: ParserName) -> Iterator[ReadFormat]:
        names = (parser.name, *parser.aliases)
        forms = next(filter(None, (formats_of(parser.kind, name) for name in names)), ())
        refusals = []
        for number, form in enumerate(forms):
            part = ReadFormat(parser, form, number)
            if words := self._misunderstanding(part):
                refusals.append(words)
            else:
                yield part
        if len(refusals) == len(forms):
            self.left_out[str(parser)] = refusals[0] if refusals else "no writer"

    def _misunderstanding(self, part: ReadFormat) -> str:
        """Return why a parser does not read a format; empty if it does."""
        form = part.form
        plain = ParserQuestion.of(form.fitted(PLAIN[part.parser.kind]), form, ())
        try:
            (reply,) = self.ask(self.lanes.first, part, [plain])
        except ChildError as error:
            return str(error.args[0])[:300]
        return reply.problems[0][1].words if reply.problems else ""

    def draw(self, part: ReadFormat, plan: CampaignPlan, number: int) -> list[ParserQuestion]:
        """Return the questions of the answers as far as the format can write them, each text once."""
        answers = drawn(meanings(), plan.examples, plan.seed_of(number))
        questions = [ParserQuestion.of(part.form.fitted(one), part.form) for one in answers]
        return list({question.text: question for question in questions if question.text}.values())

    def ask(
        self, lane: ParserProcess, part: ReadFormat, questions: Sequence[ParserQuestion]
    ) -> list[Reply[ParserQuestion]]:
        judged = []
        replies = lane.ask(part.parser, part.form, questions)
        for question, reply in zip(questions, replies, strict=True):
            seen = observations(question, reply)
            cuts = [shown.cuts[0].kind if shown.cuts else WHOLE for shown, _ in seen]
            kinds = [f"{cut}: {one.kind}" for cut, (_, one) in zip(cuts, seen, strict=True)]
            judged.append(Reply(seen, kinds))
        return judged

    def simplify(
        self, part: ReadFormat, question: ParserQuestion, problem: Problem
    ) -> Iterator[ParserQuestion]:
        """Yield the text in one piece, simpler answers, cut in the same way, and larger pieces.

        A cut that is not needed hides what the problem depends on, and a simpler answer may not
        show it in a cut that is drawn anew.
        """
        yield from (question.with_cuts(_in_one_piece(cut)) for cut in question.cuts)
        for meaning in smaller_documents(question.meaning):
            if part.form.fitted(meaning) == meaning and _names_tools(meaning):
                simpler = ParserQuestion.of(meaning, part.form, [cut.kind for cut in question.cuts])
                if any(len(cut.pieces) == 1 for cut in question.cuts):
                    simpler = simpler.with_cuts(*map(_in_one_piece, simpler.cuts))
                yield simpler
        for cut in question.cuts:
            yield from map(question.with_cuts, _joined(cut))
            if not cut.end_alone:
                yield question.with_cuts(replace(cut, end_alone=True))

    def effort(self, problem: Problem) -> Effort:
        return Effort(0 if problem.kind == NO_ANSWER else 150, batch=12)

    def concerns(self, part: ReadFormat, finding: ParserFinding) -> bool:
        one, other = part.parser, finding.parser
        return (one.kind, one.name) == (other.kind, other.name)

    def details(
        self, part: ReadFormat, question: ParserQuestion, problem: Problem
    ) -> dict[str, object]:
        kinds = [cut.kind for cut in question.cuts] if problem.kind != NO_ANSWER else []
        if kinds:  # the other cuts that show it come first
            whole = ParserQuestion.of(question.meaning, part.form)
            (reply,) = self.ask(self.lanes.first, part, [whole])
            same = [shown for shown, one in reply.problems if one.group == problem.group]
            kinds = [*(cut.kind for one in same for cut in one.cuts), *kinds]
        return {"parser": part.parser, "kinds": tuple(dict.fromkeys(kinds))}

    def describe(self, finding: ParserFinding) -> Iterator[str]:
        yield repr(finding.question.text)
        for cut in finding.question.cuts:
            yield f"in pieces {list(cut.pieces)}"

    def part_of(self, finding: ParserFinding) -> ReadFormat:
        question = finding.question
        form = Format(question.markers, options=question.options, prompt=question.prompt)
        return ReadFormat(finding.parser, form)

    def subject(self, finding: ParserFinding) -> str:
        return f"{finding.parser} of {super().subject(finding)}"


def _names_tools(meaning: Meaning) -> bool:
    return {call.name for call in meaning.calls} <= {tool["function"]["name"] for tool in TOOLS}


def _in_one_piece(cut: Cut) -> Cut:
    return replace(cut, pieces=("".join(cut.pieces),))


def _joined(cut: Cut) -> Iterator[Cut]:
    """Yield the cut with each run of some neighbouring pieces joined, many at first."""
    pieces = cut.pieces
    size = len(pieces)
    while size > 1:
        for at in range(len(pieces) - size, -1, -1):
            joined = "".join(pieces[at : at + size])
            yield replace(cut, pieces=(*pieces[:at], joined, *pieces[at + size :]))
        size //= 2


HUNTER = ParserHunter
