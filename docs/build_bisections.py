"""Write the table of bisections in docs/generated/bisections.md: ``python docs/build_bisections.py [NAME=FILE.json ...]``.

Each FILE holds the output of `vllm-regress bisect --commits --json`; it is first added to docs/records/bisections.json. NAME is the
environment that the commits were laid over. A test fails if the page differs from the record.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from page_parts import replace_parts

from pytest_vllm_regress.environments.sources import PROJECTS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "generated" / "bisections.md"
RECORD = ROOT / "docs" / "records" / "bisections.json"


def recorded() -> list[dict[str, Any]]:
    """Return every recorded bisection: case, package, base, and the result of each commit."""
    bisections: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return bisections


def add_answer(base: str, file: Path) -> None:
    """Add an answer in JSON to the record. It replaces an earlier one of the same case and package."""
    answer = json.loads(file.read_text(encoding="utf-8"))
    (hunt,) = answer["commits"]
    new = {"case": answer["case"], "package": answer["package"], "base": base, **hunt}
    others = [old for old in recorded() if (old["case"], old["package"]) != (new["case"], new["package"])]
    RECORD.write_text(
        json.dumps(sorted([*others, new], key=lambda bisection: bisection["case"]), indent=1) + "\n", encoding="utf-8"
    )


def rows() -> Iterator[str]:
    yield "| case | commit | pull request | candidates | runs to find it | runs to confirm it | seconds a run | base |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for bisection in recorded():
        results = bisection["seen"].values()
        confirming = [result for name, result in bisection["seen"].items() if name.endswith(" again")]
        confirming_runs = sum(result["runs"] for result in confirming)
        searching_runs = sum(max(result["runs"], 1) for result in results) - confirming_runs
        seconds = sum(result["seconds"] for result in results) / (searching_runs + confirming_runs)
        for change in bisection["changes"]:
            address = f"{PROJECTS[bisection['package']].repository}/commit/{change['commit']}"
            pull = change["pull_request"]
            cells = (
                bisection["case"],
                f"[{change['commit'][:10]}]({address})",
                f"[#{pull.rpartition('/')[2]}]({pull})" if pull else "none",
                f"{bisection['candidates']} of {bisection['every']}",
                str(searching_runs),
                str(confirming_runs),
                f"{seconds:.0f}",
                f"`{bisection['base']}`",
            )
            yield f"| {' | '.join(cells)} |"


def build_page(page: str) -> str:
    """Return the page with a new table."""
    return replace_parts(page, {"bisections": rows})


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        base, _, file = argument.partition("=")
        add_answer(base, Path(file))
    PAGE.write_text(build_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
