"""Pictures of the records, as SVG from ``tools/templates``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from packaging.version import Version

from pytest_vllm_regress.surveys.states.growth import MemoryRow, Slope
from pytest_vllm_regress.surveys.states.measure import TABLES, ReleaseStates
from pytest_vllm_regress.util.text import render_text

from .verdicts import agreements

_FOLDER = Path(__file__).parent / "templates"


def growth(releases: Iterable[ReleaseStates]) -> str:
    """Return the picture of the memory that each request costs, by kind of request and release:
    the last run of each process."""
    measured = sorted(releases, key=lambda release: Version(release.vllm), reverse=True)
    kinds = {
        name: {
            release.vllm: _slopes(row)
            for release in measured
            if isinstance(row := release.growth.get(name), MemoryRow) and not row.absent
        }
        for name in TABLES["growth"].names
    }
    return render_text("growth.svg", _FOLDER, kinds=kinds)


def _slopes(row: MemoryRow) -> dict[str, tuple[Slope, bool]]:
    """Return the slope of each process, and whether it grows."""
    return {name: (slope, name in row.growing) for name, slope in row.runs[-1].slopes.items()}


def agreement() -> str:
    """Return the picture of how often devices agree."""
    return render_text("agreement.svg", _FOLDER, agreements=agreements())
