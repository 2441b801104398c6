"""One self-contained HTML page: case by version, and behind every verdict its evidence. Nothing in it is loaded from anywhere.

Texts come from result files and are hostile: the template escapes all of them, control characters are shown as escapes, and the
page's policy (CSP) runs no script but its own.
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
from ..cases.cells import Cell, cells, is_sparse, oldest_first
from ..cases.model import Case
from ..cases.results import RunResult, TestResult
from ..cases.verdict import Verdict, excerpt
from ..util.files import write_whole
from ..util.paths import DATA
from ..util.text import printable
from .signs import SIGNS

MAX_TEXT = 20_000
MAX_LINE = 400
VERDICTS = {
    Verdict.REPRODUCED: "the documented failure, where it should be",
    Verdict.FIXED: "passed, where it should",
    Verdict.REGRESSED: "the failure in a version that should not have it",
    Verdict.UNEXPECTEDLY_FIXED: "an affected version passed",
    Verdict.NOT_APPLICABLE: "this version or device does not have what the case needs",
    Verdict.INCONCLUSIVE: "proves nothing: another failure, or the harness's own",
}
_FORM = """### Your current environment

{versions}

### \N{BUG} Describe the bug

{title}

Seen with {environment} on {device}: {verdict}

```text
{symptom}
```

To reproduce, with pytest-vllm-regress {tool}:

```sh
{command}
```

{evidence}
"""


@dataclasses.dataclass(frozen=True)
class Proof:
    """What one test showed, ready for the page."""

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
    """One cell of the table and the evidence behind it."""

    anchor: str
    case: str
    title: str
    environment: str
    device: str
    verdict: str
    sign: str
    expected: bool
    duration: str
    proofs: tuple[Proof, ...]
    versions: tuple[tuple[str, str], ...]
    issue: str


@dataclasses.dataclass(frozen=True)
class Row:
    """A case: its description, its links, and for each column the entries there (one for each device)."""

    case: str
    title: str
    affected: str
    links: tuple[tuple[str, str], ...]
    cells: tuple[tuple[Entry, ...], ...]


def write_page(
    path: Path, run: RunResult, cases: Sequence[Case] = (), releases: Sequence[Mapping[str, Any]] = ()
) -> Path:
    """Write the page. Raises ``UsageError`` when the place cannot be written."""
    write_whole(path, page(run, cases, releases))
    return path


def page(
    run: RunResult,
    cases: Sequence[Case] = (),
    releases: Sequence[Mapping[str, Any]] = (),
    now: float | None = None,
) -> str:
    """The page's HTML. ``cases`` give titles, ranges and links; ``now`` in seconds since the epoch.

    ``releases``: what is known of each release, as ``audit --releases --json`` has it.
    """
    known = {case.id: case for case in cases}
    found = cells(run.results)
    sparse = is_sparse(found)
    environments = oldest_first(run.results)
    entries = [_entry(number, cell, known.get(cell.case_id), run.tool_version) for number, cell in enumerate(found)]
    by_case: dict[str, dict[str, list[Entry]]] = {}
    for cell, entry in zip(found, entries, strict=True):
        by_case.setdefault(cell.case_id, {}).setdefault(cell.environment, []).append(entry)
    rows = [
        _row(
            case_id,
            known.get(case_id),
            [chain.from_iterable(mine.values())] if sparse else [mine.get(name, []) for name in environments],
        )
        for case_id, mine in by_case.items()
    ]
    counts = Counter(cell.verdict for cell in found)
    style, script = _asset("page.css"), _asset("page.js")
    html: str = _template().render(
        rows=rows,
        environments=["Environments"] if sparse else [_shown(name, MAX_LINE) for name in environments],
        sparse=sparse,
        entries=[entry for row in rows for cell in row.cells for entry in cell],
        counts=[(v.value, SIGNS[v], text, counts[v]) for v, text in VERDICTS.items() if counts[v]],
        unexpected=sum(not cell.expected for cell in found),
        releases=releases,
        problems=[_shown(problem, MAX_TEXT) for problem in run.problems],
        simulated=any(cell.device == "sim" for cell in found),
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)),
        tool=_shown(run.tool_version, MAX_LINE),
        style=style,
        script=script,
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'",
        version=__version__,
    )
    return html


def _row(case_id: str, case: Case | None, columns: Iterable[Iterable[Entry]]) -> Row:
    return Row(
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
    shown = tuple((_shown(name, MAX_LINE), _shown(version, MAX_LINE)) for name, version in sorted(versions.items()))
    proofs = tuple(_proof(result) for result in sorted(cell.results, key=lambda result: result.expected))
    return Entry(
        anchor=f"evidence-{number}",
        case=_shown(cell.case_id, MAX_LINE),
        title=_shown(case.title, MAX_LINE) if case else "",
        environment=_shown(cell.environment, MAX_LINE),
        device=cell.device,
        verdict=cell.verdict.value,
        sign=SIGNS[cell.verdict],
        expected=cell.expected,
        duration=_duration(sum(result.duration_s for result in cell.results)),
        proofs=proofs,
        versions=shown,
        issue=_issue(cell, case, shown, tool),
    )


def _proof(result: TestResult) -> Proof:
    return Proof(
        test=_shown(result.test, MAX_LINE),
        variant=_shown(result.variant or "", MAX_LINE),
        verdict=result.verdict.value,
        sign=SIGNS[result.verdict],
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
    """An upstream report of this cell, in the sections of vLLM's bug form."""
    worst = next((result for result in cell.results if result.verdict is cell.verdict), cell.results[0])
    simulated = (
        "a simulated device (every part of vLLM is real but the model's arithmetic)"
        if cell.device == "sim"
        else f"device {cell.device}"
    )
    known = f"Known as {', '.join(case.upstream)}; affected as documented: {case.affected_text()}." if case else ""
    return _FORM.format(
        versions="\n".join(f"- {name} {version}" for name, version in versions) or "unknown",
        title=_shown(case.title if case else cell.case_id, MAX_LINE),
        environment=_shown(cell.environment, MAX_LINE),
        device=simulated,
        verdict=f"{cell.verdict.value}: {_shown(excerpt(worst.reason, MAX_LINE), MAX_LINE)}",
        symptom=_shown(worst.symptom or worst.reason, 2000).replace("```", "'''"),
        tool=_shown(tool, MAX_LINE),
        command=_shown(worst.command, 2000).replace("```", "'''"),
        evidence=known,
    )


def _shown(text: str, limit: int) -> str:
    """``text`` with control characters and marks of direction as escapes, bounded."""
    if len(text) > limit:
        text = f"{text[: limit - 40]} ... {len(text) - limit + 40} characters left out"
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
    """How a policy names an inline script or style: by its hash. The template puts a line break on both sides."""
    return "sha256-" + base64.b64encode(hashlib.sha256(f"\n{content}\n".encode()).digest()).decode()


@functools.cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_asset("page.html"))
