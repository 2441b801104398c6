"""The pages of findings, and ``python -m tools.findings``, which changes the findings below docs.

With folders as arguments (written by ``vllm-regress fuzz HUNTER --out FOLDER``), their findings
replace those of the same hunter below docs, the smallest of each cause. With --ask, the
findings of the hunters in these folders are asked again in these environments; without folders,
all are.

    python -m tools.findings /tmp/seed-1 /tmp/seed-2 --ask vllm-0.11.2 --ask vllm-0.33.0
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.errors import ChildError, Unsupported
from pytest_vllm_regress.fuzz.api.api_hunter import ApiFinding
from pytest_vllm_regress.fuzz.engines.pair_hunter import EngineFinding
from pytest_vllm_regress.fuzz.finding import Finding, ReplayAnswer, UpstreamSearch
from pytest_vllm_regress.fuzz.hunter import hunter_named, load
from pytest_vllm_regress.fuzz.lifecycle.story_hunter import Story, StoryFinding
from pytest_vllm_regress.fuzz.parsers.parser_hunter import ParserFinding
from pytest_vllm_regress.fuzz.schemas.schema_hunter import SchemaFinding
from pytest_vllm_regress.schemas import PROFILES, features
from pytest_vllm_regress.util import codec
from pytest_vllm_regress.util.report import Markup, Table

from . import page as pages

DOCS = Path(__file__).parents[1] / "docs"
FOUND_AGAIN = DOCS / "records" / "found-again"
UNREPORTED = DOCS / "records" / "unreported.toml"
LONG = 240
"""Maximum length of a request or story in a table cell, in characters."""
Row = tuple[str, ...]
"""Markdown of the cells of a row."""


@dataclasses.dataclass(frozen=True)
class FindingsPage:
    """A page about the findings of some hunters.

    Attributes:
        name: of the page, of its template, and of the folder with the findings.
        columns: those with ``cells``; the releases and what upstream knows follow.
        keys: under which a finding may stand in upstream.toml, the most special one first.
        title: name of a finding that is by design.
        order: what the table is sorted by.
        of: of what the findings are, for their count.
    """

    name: str
    hunters: tuple[str, ...]
    columns: Row
    cells: Callable[[Any], Row]
    keys: Callable[[Any], Row]
    title: Callable[[Any], str]
    order: Callable[[Any], Any]
    of: Callable[[Sequence[Any]], str] = lambda findings: ""

    @property
    def folder(self) -> Path:
        return DOCS / self.name

    def published(self) -> list[Any]:
        """Return the findings in the folder, in the order of the table."""
        return sorted(map(load, self.folder.glob("*.json")), key=self.order)

    def looked_up(self, finding: Finding) -> Mapping[str, Any]:
        """Return what was looked up by hand for a finding."""
        known = tomllib.loads((self.folder / "upstream.toml").read_text(encoding="utf-8"))
        entries = (known[key] for key in self.keys(finding) if key in known)
        return next(entries, {"words": [], "reports": []})

    def with_upstream(self, finding: Any) -> Any:
        """Return the finding with what was looked up."""
        entry = self.looked_up(finding)
        upstream = UpstreamSearch(tuple(entry["words"]), tuple(entry["reports"]))
        return codec.replace(finding, upstream=upstream)

    def link(self, finding: Finding, text: str) -> str:
        """Return a link from the page to the file of a finding."""
        return f"[{text}](../{self.name}/{finding.name})"

    def text(self) -> str:
        """Return the page: the table, the number of findings, and those that are by design."""
        entries = [(one, self.looked_up(one)) for one in self.published()]
        findings = [one for one, entry in entries if "by_design" not in entry]
        rows = [[*self.cells(one), *_releases(one), _reports(one)] for one in findings]
        searched = sum(bool(one.upstream.words) for one in findings)
        known = sum(bool(one.upstream.reports) for one in findings)
        return pages.render(
            self.name,
            findings=_table((*self.columns, "fails in", "right in", "upstream"), rows),
            count=f"{len(findings)} findings{self.of(findings)}; {searched} looked up, "
            f"{known} of these reported upstream",
            designed=[
                (self.link(one, self.title(one)), entry["by_design"])
                for one, entry in entries
                if "by_design" in entry
            ],
        )


def code(text: str, limit: int = 150) -> str:
    """Return text as code in a cell of a Markdown table."""
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    plain = short.replace("\\", "\\\\").replace("\n", "\\n").replace("|", "\\|")
    return f"`` {plain} ``" if "`" in plain else f"`{plain}`"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return Table(header, [list(map(Markup, row)) for row in rows])


def _releases(finding: Finding) -> Row:
    """Return the releases that fail, and those that are right."""
    answers = (ReplayAnswer.STILL_FAILS, ReplayAnswer.FIXED)
    return tuple(
        ", ".join(name for name, answer in finding.releases.items() if answer is wanted) or "-"
        for wanted in answers
    )


def _reports(finding: Finding) -> str:
    words = "; ".join(finding.upstream.words)
    return ", ".join(finding.upstream.reports) or (
        f"not found ({words})" if words else "not looked up"
    )


def _api_cells(finding: ApiFinding) -> Row:
    question = finding.question
    return (
        API.link(finding, question.operation),
        finding.problem.kind,
        code(question.body or question.path),
        code(finding.problem.words),
        code(finding.problem.key),
    )


API = FindingsPage(
    "api-findings",
    ("api",),
    ("route", "problem", "request", "what came", "cause"),
    _api_cells,
    lambda one: (one.problem.key,),
    lambda one: f"{one.question.operation}: {one.problem.key}",
    lambda one: (one.question.route, one.problem.kind, one.name),
)


def _engine_cells(finding: EngineFinding | StoryFinding) -> Row:
    if isinstance(finding, StoryFinding):
        where, what = "lifecycle", code(finding.question.to_text(), LONG)
    else:
        requests = map(codec.encode, finding.question.requests)
        where, what = finding.pair, " ".join(code(json.dumps(one), LONG) for one in requests)
    problem = finding.problem
    return ENGINES.link(finding, where), problem.kind, what, code(problem.words, LONG)


ENGINES = FindingsPage(
    "engine-findings",
    ("engines", "lifecycle"),
    ("hunter or pair", "what is wrong", "requests or story", "observed"),
    _engine_cells,
    lambda one: (one.name, one.problem.kind),
    lambda one: str(one.problem.kind),
    lambda one: one.name,
)


def _parser_cells(finding: ParserFinding) -> Row:
    pieces = next((cut.pieces for cut in finding.question.cuts), (finding.question.text,))
    return (
        PARSERS.link(finding, str(finding.parser)),
        finding.problem.kind,
        code(" / ".join(pieces)),
        code(finding.problem.words),
        ", ".join(finding.kinds) or "whole",
    )


def _parser_keys(finding: ParserFinding) -> Row:
    parser = f"{finding.parser.name} {finding.parser.kind}"
    return finding.name, f"{parser}: {finding.problem.kind}", parser


PARSERS = FindingsPage(
    "parser-findings",
    ("parsers",),
    ("parser", "problem", "pieces", "what came", "in"),
    _parser_cells,
    _parser_keys,
    lambda one: str(one.parser),
    lambda one: (one.parser.kind, one.parser.name, one.problem.key, one.problem.kind, one.name),
    lambda ones: f" in {len({(one.parser.kind, one.parser.name) for one in ones})} parsers",
)


class SchemasPage(FindingsPage):
    """The page about backends alone, which says what a backend claims."""

    def text(self) -> str:
        known = tomllib.loads((self.folder / "upstream.toml").read_text(encoding="utf-8"))
        rows = [
            [*self.cells(one), *_releases(one), _claims(one), known.get(one.name, "not found")]
            for one in self.published()
        ]
        header = (*self.columns, "fails in", "works in", "claims", "upstream")
        table = _table(header, rows)
        return pages.render(self.name, findings=table, count=f"{len(rows)} findings", designed=())


def _claims(finding: SchemaFinding) -> str:
    claimed = PROFILES[finding.backend].features
    return "yes" if features(finding.question.schema) <= claimed else "no"


def _schema_cells(finding: SchemaFinding) -> Row:
    schema = json.dumps(finding.question.schema, ensure_ascii=False)
    problem = finding.problem
    return (
        SCHEMAS.link(finding, finding.backend),
        problem.kind,
        _plain(schema),
        _plain(problem.words),
    )


def _plain(text: str) -> str:
    short = text if len(text) <= 160 else text[:157] + "..."
    plain = short.replace("\n", " ").replace("|", "\\|")
    fence = "``" if "`" in plain else "`"
    return f"{fence}{plain}{fence}"


SCHEMAS = SchemasPage(
    "findings",
    ("schemas",),
    ("backend", "outcome", "schema", "problem"),
    _schema_cells,
    lambda one: (one.name,),
    lambda one: str(one.name),
    lambda one: (one.backend, one.problem.kind, one.problem.key),
)
PAGES = (API, ENGINES, PARSERS, SCHEMAS)


@dataclasses.dataclass(frozen=True)
class FoundAgain:
    """A documented failure that a campaign found: the finding, the report, and the campaign with
    the step that found it."""

    finding: EngineFinding | StoryFinding
    report: str
    campaign: str
    seen: str

    @property
    def cells(self) -> Row:
        finding, question = self.finding, self.finding.question
        hunter = f"engines, {finding.pair}" if isinstance(finding, EngineFinding) else "lifecycle"
        text = (
            question.to_text()
            if isinstance(question, Story)
            else json.dumps(codec.encode(question.turns))
        )
        number = self.report.rpartition("/")[2]
        report = (
            f"[#{number}]({self.report})"
            if "/" in self.report
            else f"[{self.report}](../../cases/{self.report}/README.md)"
        )
        return (
            f"[{hunter}](../records/found-again/{finding.name})",
            report,
            finding.environment.removeprefix("vllm-"),
            finding.problem.kind,
            code(" ".join(text.split()), LONG),
            code(f"vllm-regress {self.campaign}", LONG),
            self.seen,
        )


def found_again() -> list[FoundAgain]:
    """Return what the record lists."""
    document = tomllib.loads((FOUND_AGAIN / "found-again.toml").read_text(encoding="utf-8"))
    return [
        FoundAgain(load(FOUND_AGAIN / entry.pop("file")), **entry) for entry in document["found"]
    ]


def found_again_page() -> str:
    """Return the page of what was found again."""
    kinds = ("hunter", "documented as", "release", "what is wrong", "smallest form", "campaign")
    rows = (entry.cells for entry in found_again())
    return pages.render("found-again", findings=_table((*kinds, "seen in"), rows))


def causes() -> list[Mapping[str, Any]]:
    """Return the causes of the record of what is not reported: hunter, what, and findings."""
    entries: list[Mapping[str, Any]] = tomllib.loads(UNREPORTED.read_text(encoding="utf-8"))[
        "cause"
    ]
    return entries


def unreported() -> dict[str, FindingsPage]:
    """Return the names of published findings that are neither reported nor by design, with their
    pages."""
    return {
        Path(one.name).stem: page
        for page in (API, ENGINES, PARSERS)
        for one in page.published()
        if not one.upstream.reports and "by_design" not in page.looked_up(one)
    }


def unreported_page() -> str:
    """Return the page of what is not reported."""
    page_of, rows = unreported(), []
    for cause in causes():
        links = [
            f"[{number}](../{page_of[name].name}/{name}.json)"
            for number, name in enumerate(cause["findings"], 1)
        ]
        rows.append((cause["hunter"], cause["what"], ", ".join(links)))
    hunters = Counter(hunter for hunter, _, _ in rows)
    counts = ", ".join(f"{count} by `fuzz {hunter}`" for hunter, count in hunters.items())
    table = _table(("hunter", "cause", "findings"), rows)
    return pages.render("unreported", causes=table, counts=counts)


def smallest(findings: Iterable[Any]) -> list[Any]:
    """Return the findings that no smaller one explains."""
    chosen: list[Any] = []
    for finding in sorted(findings, key=lambda one: len(one.text())):
        others = (one for one in chosen if _subject(one) == _subject(finding))
        if not any(one.explains(finding.question, finding.problem) for one in others):
            chosen.append(finding)
    return chosen


def _subject(finding: Any) -> tuple[object, ...]:
    names = ("hunter", "backend", "pair", "parser")
    return tuple(getattr(finding, name, None) for name in names)


def with_releases(findings: Sequence[Any], environments: Sequence[str]) -> list[Any]:
    """Ask every finding again in each environment."""
    answers: dict[str, dict[str, ReplayAnswer]] = defaultdict(dict)
    for hunter in dict.fromkeys(finding.hunter for finding in findings):
        for environment in environments:
            with bare_session(max_engines=4, limits=hunter_named(hunter).limits) as session:
                asker = hunter_named(hunter).of([session], environment)
                with asker.lanes:
                    for finding in findings:
                        if finding.hunter == hunter:
                            release, answer = _asked(asker, finding)
                            answers[finding.name][release] = answer
    return [codec.replace(one, releases={**one.releases, **answers[one.name]}) for one in findings]


def _asked(asker: Any, finding: Any) -> tuple[str, ReplayAnswer]:
    try:
        answer = asker.replay(finding)[0]
        return asker.subject(finding).rpartition(" ")[2], answer
    except (Unsupported, ChildError):
        return asker.version, ReplayAnswer.CANNOT_RUN


def main(
    folders: Annotated[list[Path] | None, typer.Argument()] = None,
    ask: Annotated[list[str] | None, typer.Option(metavar="ENV")] = None,
) -> None:
    """Replace findings below docs by those in these folders, and ask findings again."""
    new = smallest(load(path) for folder in folders or () for path in sorted(folder.glob("*.json")))
    hunters = {finding.hunter for finding in new}
    for page in PAGES:
        old = page.published()
        kept = [one for one in old if one.hunter not in hunters]
        own = [one for one in new if one.hunter in page.hunters]
        if own or not new:
            own = with_releases(own or old, ask or ())
            kept = kept if new else []
        for one in old:
            (page.folder / one.name).unlink()
        for one in (*kept, *own):
            (page.with_upstream(one) if page is not SCHEMAS else one).save(page.folder)


if __name__ == "__main__":
    typer.run(main)
