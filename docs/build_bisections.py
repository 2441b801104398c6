"""Writes the table of bisections in docs/bisect.md: ``python docs/build_bisections.py [NAME=FILE.json ...]``. A test refuses a page that differs.

The table comes from docs/records/bisections.json, into which what `vllm-regress bisect --commits --json` printed is taken over first. NAME is
the environment that the commits were laid over.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generated import rebuilt

from pytest_vllm_regress.environments.sources import PROJECTS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "bisect.md"
RECORD = ROOT / "docs" / "records" / "bisections.json"


def recorded() -> list[dict[str, Any]]:
    """Every bisection: the case, the package, the base, and what was seen of each commit."""
    found: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def take_over(base: str, file: Path) -> None:
    """An answer in JSON into the record, in the place of an earlier one of the same case and package."""
    answer = json.loads(file.read_text(encoding="utf-8"))
    (hunt,) = answer["commits"]
    new = {"case": answer["case"], "package": answer["package"], "base": base, **hunt}
    kept = [each for each in recorded() if (each["case"], each["package"]) != (new["case"], new["package"])]
    RECORD.write_text(
        json.dumps(sorted([*kept, new], key=lambda each: each["case"]), indent=1) + "\n", encoding="utf-8"
    )


def rows() -> Iterator[str]:
    yield "| case | commit | pull request | candidates | runs to find it | runs to confirm it | seconds a run | over |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for each in recorded():
        confirming = [seen for name, seen in each["seen"].items() if name.endswith(" again")]
        every = each["seen"].values()
        again = sum(seen["runs"] for seen in confirming)
        found = sum(max(seen["runs"], 1) for seen in every) - again
        seconds = sum(seen["seconds"] for seen in every) / (found + again)
        for change in each["changes"]:
            address = f"{PROJECTS[each['package']].repository}/commit/{change['commit']}"
            pull = change["pull_request"]
            cells = (
                each["case"],
                f"[{change['commit'][:10]}]({address})",
                f"[#{pull.rpartition('/')[2]}]({pull})" if pull else "none",
                f"{each['candidates']} of {each['every']}",
                str(found),
                str(again),
                f"{seconds:.0f}",
                f"`{each['base']}`",
            )
            yield f"| {' | '.join(cells)} |"


def built(page: str) -> str:
    """The page with its table made anew."""
    return rebuilt(page, {"bisections": rows})


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        base, _, file = argument.partition("=")
        take_over(base, Path(file))
    PAGE.write_text(built(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
