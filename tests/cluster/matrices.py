"""Stand-in environments for a matrix on a cluster, and the results that are expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import MakeTarget

LEFT_S = 10.0
"""Seconds after the end of a run in which its processes may still be ending."""


def environments(make_target: MakeTarget, old: int, new: int) -> list[str]:
    return [str(make_target(vllm=version)) for version in (*["0.8.4"] * old, *["0.8.5"] * new)]


def named(targets: list[str]) -> list[str]:
    return [part for target in targets for part in ("--env", target)]


def page(path: Path) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads(path.read_text())["results"]
    return results


def verdicts(results: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return sorted results, duplicates included."""
    return sorted(
        (result["environment"], result["case_id"], result["verdict"]) for result in results
    )


def expected(targets: list[str], old: int, cases: int) -> list[tuple[str, str, str]]:
    return sorted(
        (target, f"case-{number}", "REPRODUCED" if place < old else "FIXED")
        for place, target in enumerate(targets)
        for number in range(cases)
    )
