"""Write docs/generated/unreported.md from docs/records/unreported.toml:

``python docs/build_unreported.py``.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build_api_findings
import build_engine_findings
import build_parser_findings

HERE = Path(__file__).parent
RECORD = HERE / "records" / "unreported.toml"
PAGE = HERE / "generated" / "unreported.md"
BUILDERS: tuple[Any, ...] = (build_api_findings, build_engine_findings, build_parser_findings)

HEAD = """# Failures in the newest release that nobody has reported

<!-- written by docs/build_unreported.py; do not edit -->

The published findings of [`fuzz parsers`](parser-findings.md), [`fuzz api`](api-findings.md), [`fuzz engines` and `fuzz
lifecycle`](engine-findings.md) for which no report was found, by cause. The words that were searched for are in the
findings; what is by design, or reported, is on their pages. A cause that several parsers share counts once. It is told by
what is observed and by vLLM's sources, not by a fix, so two causes may turn out to be one.

| hunter | cause | findings |
| --- | --- | --- |
"""


@dataclasses.dataclass(frozen=True)
class Cause:
    """A cause, and the files of its findings."""

    hunter: str
    what: str
    findings: tuple[str, ...]


def causes() -> list[Cause]:
    """Return the causes of the record."""
    entries = tomllib.loads(RECORD.read_text(encoding="utf-8"))["cause"]
    return [Cause(entry["hunter"], entry["what"], tuple(entry["findings"])) for entry in entries]


def unreported() -> dict[str, Path]:
    """Return the files of published findings that are neither reported nor by design, by name."""
    return {path.stem: path for builder in BUILDERS for path in _unreported(builder)}


def _unreported(builder: Any) -> Iterator[Path]:
    for finding in builder.published():
        if not finding.upstream.reports and "by_design" not in builder.looked_up(finding):
            yield builder.PLACE / finding.name


def page() -> str:
    """Return the page."""
    paths, rows = unreported(), []
    for cause in causes():
        links = [
            f"[{number}](../{paths[name].parent.name}/{name}.json)"
            for number, name in enumerate(cause.findings, 1)
        ]
        rows.append(f"| {cause.hunter} | {cause.what} | {', '.join(links)} |")
    counts = ", ".join(
        f"{count} by `fuzz {hunter}`"
        for hunter, count in Counter(cause.hunter for cause in causes()).items()
    )
    return HEAD + "\n".join(rows) + f"\n\n{len(rows)} causes: {counts}.\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
