"""A self-contained HTML page: a table of cases by version, and the evidence of every verdict. The page loads nothing.

Texts come from result files and are not trusted: the template escapes all of them, control characters are shown as escapes, and the
content security policy allows no script but the page's own.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from .._version import __version__
from ..cases.cells import Cell, environments_oldest_first, group_into_cells, is_sparse
from ..cases.model import Case
from ..cases.results import RunResult, TestResult
from ..cases.verdict import Verdict, excerpt
from ..util.files import write_atomically
from ..util.paths import DATA
from ..util.text import markdown_block, markdown_inline, printable
from .symbols import SYMBOLS

MAX_TEXT = 20_000
MAX_LINE = 400
VERDICTS = {
    Verdict.REPRODUCED: "the documented failure, in an affected version",
    Verdict.FIXED: "passed, in a version that is not affected",
    Verdict.REGRESSED: "the failure, in a version that should not have it",
    Verdict.UNEXPECTEDLY_FIXED: "an affected version passed",
    Verdict.NOT_APPLICABLE: "this version or device lacks what the case needs",
    Verdict.INCONCLUSIVE: "proves nothing: another failure, or one of the harness",
}
_FORM = """### Your current environment

{versions}

### \N{BUG} Describe the bug

{title}

Seen with {environment} on {device}: {verdict}

{symptom}

To reproduce, with pytest-vllm-regress {tool}:

{command}

{evidence}
"""


@dataclasses.dataclass(frozen=True)
class TestEvidence:
    """The result of one test, formatted for the page."""

    test: str
    variant: str
    verdict: str
    sign: str
    expected: bool
    reason: str
    symptom: str
    dossier: str
    command: str
    duration: str
    started: str
    control: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """A cell of the table with its evidence."""

    anchor: str
    case: str
    title: str
    environment: str
    device: str
    verdict: str
    sign: str
    expected: bool
    duration: str
    proofs: tuple[TestEvidence, ...]
    versions: tuple[tuple[str, str], ...]
    issue: str


@dataclasses.dataclass(frozen=True)
class CaseRow:
    """A case: its description, its links, and the entries in each column (one for each device)."""

    case: str
    title: str
    affected: str
    links: tuple[tuple[str, str], ...]
    cells: tuple[tuple[Entry, ...], ...]


def write_page(
    path: Path, run: RunResult, cases: Sequence[Case] = (), releases: Sequence[Mapping[str, Any]] = ()
) -> Path:
    """Write the page to ``path``. Raises ``UsageError`` if that fails."""
    write_atomically(path, page(run, cases, releases))
    return path


def page(
    run: RunResult,
    cases: Sequence[Case] = (),
    releases: Sequence[Mapping[str, Any]] = (),
    now: float | None = None,
) -> str:
    """Return the HTML of the page.

    ``cases``: for titles, ranges and links.
    ``releases``: the known failures of each release, as in ``audit --releases --json``.
    ``now``: in seconds since the epoch.
    """
    by_id = {case.id: case for case in cases}
    all_cells = group_into_cells(run.results)
    sparse = is_sparse(all_cells)
    environments = environments_oldest_first(run.results)
    entries = [_entry(number, cell, by_id.get(cell.case_id), run.tool_version) for number, cell in enumerate(all_cells)]
    by_case: dict[str, dict[str, list[Entry]]] = {}
    for cell, entry in zip(all_cells, entries, strict=True):
        by_case.setdefault(cell.case_id, {}).setdefault(cell.environment, []).append(entry)
    rows = [
        _row(
            case_id,
            by_id.get(case_id),
            [chain.from_iterable(columns.values())] if sparse else [columns.get(name, []) for name in environments],
        )
        for case_id, columns in by_case.items()
    ]
    counts = Counter(cell.verdict for cell in all_cells)
    style, script = _asset("page.css"), _asset("page.js")
    html: str = _template().render(
        rows=rows,
        environments=["Environments"] if sparse else [_shown(name, MAX_LINE) for name in environments],
        sparse=sparse,
        entries=[entry for row in rows for cell in row.cells for entry in cell],
        counts=[(v.value, SYMBOLS[v], text, counts[v]) for v, text in VERDICTS.items() if counts[v]],
        unexpected=sum(not cell.expected for cell in all_cells),
        releases=releases,
        problems=[_shown(problem, MAX_TEXT) for problem in run.problems],
        simulated=any(cell.device == "sim" for cell in all_cells),
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)),
        tool=_shown(run.tool_version, MAX_LINE),
        style=style,
        script=script,
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'",
        version=__version__,
    )
    return html


def _row(case_id: str, case: Case | None, columns: Iterable[Iterable[Entry]]) -> CaseRow:
    return CaseRow(
        case=_shown(case_id, MAX_LINE),
        title=_shown(case.title, MAX_LINE) if case else "",
        affected=_shown(case.affected_text(), MAX_LINE) if case else "",
        links=tuple((_link_name(url), url) for url in (*case.upstream, *case.fixed_by) if url.startswith("https://"))
        if case
        else (),
        cells=tuple(map(tuple, columns)),
    )


def _entry(number: int, cell: Cell, case: Case | None, tool: str) -> Entry:
    versions = {name: version for result in cell.results for name, version in result.versions.items()}
    version_rows = tuple(
        (_shown(name, MAX_LINE), _shown(version, MAX_LINE)) for name, version in sorted(versions.items())
    )
    proofs = tuple(_test_evidence(result) for result in sorted(cell.results, key=lambda result: result.expected))
    return Entry(
        anchor=f"evidence-{number}",
        case=_shown(cell.case_id, MAX_LINE),
        title=_shown(case.title, MAX_LINE) if case else "",
        environment=_shown(cell.environment, MAX_LINE),
        device=cell.device,
        verdict=cell.verdict.value,
        sign=SYMBOLS[cell.verdict],
        expected=cell.expected,
        duration=_duration(sum(result.duration_s for result in cell.results)),
        proofs=proofs,
        versions=version_rows,
        issue=_issue(cell, case, version_rows, tool),
    )


def _test_evidence(result: TestResult) -> TestEvidence:
    return TestEvidence(
        test=_shown(result.test, MAX_LINE),
        variant=_shown(result.variant or "", MAX_LINE),
        verdict=result.verdict.value,
        sign=SYMBOLS[result.verdict],
        expected=result.expected,
        reason=_shown(" - ".join(filter(None, (result.not_expected_because, result.reason))), MAX_TEXT),
        symptom=_shown(result.symptom, MAX_TEXT),
        dossier=_shown(result.dossier, MAX_TEXT),
        command=_shown(result.command, MAX_TEXT),
        duration=_duration(result.duration_s),
        started=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(result.started_at)) if result.started_at else "",
        control=result.control,
    )


def _issue(cell: Cell, case: Case | None, versions: Sequence[tuple[str, str]], tool: str) -> str:
    """Return the text of an upstream report, in the sections of vLLM's bug form."""
    worst = next((result for result in cell.results if result.verdict is cell.verdict), cell.results[0])
    simulated = (
        "a simulated device (every part of vLLM is real but the model's arithmetic)"
        if cell.device == "sim"
        else f"device {cell.device}"
    )
    addresses = ", ".join(f"<{url}>" for url in case.upstream) if case else ""
    reference = (
        f"Known as {addresses}; affected as documented: {markdown_inline(case.affected_text())}." if case else ""
    )
    return _FORM.format(
        versions=markdown_block("\n".join(f"{name} {version}" for name, version in versions) or "unknown", "text"),
        title=markdown_inline(_shown(case.title if case else cell.case_id, MAX_LINE)),
        environment=markdown_inline(_shown(cell.environment, MAX_LINE)),
        device=simulated,
        verdict=f"{cell.verdict.value}: {markdown_inline(_shown(excerpt(worst.reason, MAX_LINE), MAX_LINE))}",
        symptom=markdown_block(_shown(worst.symptom or worst.reason, 2000), "text"),
        tool=markdown_inline(_shown(tool, MAX_LINE)),
        command=markdown_block(_shown(worst.command, 2000), "sh"),
        evidence=reference,
    )


def _shown(text: str, limit: int) -> str:
    """Escape control and direction characters, and truncate."""
    if len(text) > limit:
        text = f"{text[: limit - 40]} ... {len(text) - limit + 40} characters omitted"
    return printable(text)


def _link_name(url: str) -> str:
    parts = url.rstrip("/").split("/")
    return f"{parts[-3]}#{parts[-1]}" if parts[-1].isdigit() and len(parts) > 3 else parts[-1][:40]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


@functools.cache
def _asset(name: str) -> str:
    return (DATA / "page" / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    """Return the hash by which a policy allows an inline script or style. The template adds a line break on both sides."""
    return "sha256-" + base64.b64encode(hashlib.sha256(f"\n{content}\n".encode()).digest()).decode()


@functools.cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_asset("page.html"))
