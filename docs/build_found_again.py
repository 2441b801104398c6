"""Write docs/generated/found-again.md from docs/records/found-again:

``python docs/build_found_again.py``.
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

from build_engine_findings import Finding, kind_of, load
from page_parts import code

from pytest_vllm_regress.fuzz.lifecycle.finding import StoryFinding

HERE = Path(__file__).parent
PLACE = HERE / "records" / "found-again"
PAGE = HERE / "generated" / "found-again.md"

HEAD = """# Documented failures that the hunters found again

<!-- written by docs/build_found_again.py; do not edit -->

A hunter that finds nothing in a new release says something only if it finds what is known in an old one. These failures were
documented before; nothing in the hunters names them. Each campaign had the time and the questions that its row tells; the
finding is the file in its smallest form, and `vllm-regress replay FILE` asks it again. Tests replay all of them. `fuzz parsers`
and `fuzz api` find documented failures again in tests that run whole campaigns (`tests/engine/fuzz`).

| hunter | documented as | release | what is wrong | smallest form | campaign | seen in |
| --- | --- | --- | --- | --- | --- | --- |
"""


@dataclasses.dataclass(frozen=True)
class FoundAgain:
    """A documented failure that a campaign found: the finding, the report, and the campaign with
    the step that found it."""

    finding: Finding
    report: str
    campaign: str
    seen: str


def found_again() -> list[FoundAgain]:
    """Return what the record lists."""
    document = tomllib.loads((PLACE / "found-again.toml").read_text(encoding="utf-8"))
    return [
        FoundAgain(load(PLACE / entry["file"]), entry["report"], entry["campaign"], entry["seen"])
        for entry in document["found"]
    ]


def row(entry: FoundAgain) -> str:
    """Return a row of the table."""
    finding = entry.finding
    is_story = isinstance(finding, StoryFinding)
    hunter = "lifecycle" if is_story else f"engines, {finding.pair}"
    smallest = finding.story.to_text() if is_story else " ".join(finding.question.to_text().split())
    number = entry.report.rpartition("/")[2]
    report = (
        f"[#{number}]({entry.report})"
        if "/" in entry.report
        else f"[{entry.report}](../../cases/{entry.report}/README.md)"
    )
    cells = (
        f"[{hunter}](../records/found-again/{finding.name})",
        report,
        finding.environment.removeprefix("vllm-"),
        kind_of(finding),
        code(smallest, 240),
        code(f"vllm-regress {entry.campaign}", 240),
        entry.seen,
    )
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Return the page."""
    return HEAD + "".join(f"{row(entry)}\n" for entry in found_again())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
