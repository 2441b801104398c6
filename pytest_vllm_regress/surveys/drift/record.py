"""The record of ``vllm-regress drift`` as JSON, and its table."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from ...util import record_file
from ...util.report import markdown_table
from .model import Breakage, Culprit, Drift, Stage

_COLUMNS = ("release", "Python", "day", "fails at", "because of", "first bad", "pin", "confirmed")


def read_record(path: Path) -> dict[str, Drift]:
    """Return the recorded diagnosis of each release; an empty dict without a file.

    Raises ``UsageError`` for an invalid file.
    """
    return record_file.read_record(path, "drift", _drift)


def write_record(path: Path, drifts: Mapping[str, Drift]) -> None:
    """Write the record where ``read_record`` finds it, oldest release first."""
    record_file.write_record(
        path, {version: to_json(drifts[version]) for version in sorted(drifts, key=Version)}
    )


def to_json(drift: Drift) -> dict[str, Any]:
    """Return a release's entry in the record."""
    return {
        "day": drift.day.isoformat(),
        "breakages": [
            {
                "stage": breakage.stage.value,
                "reason": breakage.reason,
                "culprits": [vars(culprit) for culprit in breakage.culprits],
            }
            for breakage in drift.breakages
        ],
        "pins": dict(drift.pins),
        "confirmed": drift.confirmed,
        "then": drift.then,
        "python": drift.python,
    }


def known_culprits(drifts: Iterable[Drift]) -> dict[str, tuple[str, str]]:
    """Return the packages that broke a release, with their last good and first bad version."""
    return {
        culprit.package: (culprit.good, culprit.bad)
        for drift in drifts
        for breakage in drift.breakages
        for culprit in breakage.culprits
        if culprit.bad
    }


def table(drifts: Collection[Drift]) -> list[str]:
    """Return the page as lines of Markdown, newest release first."""
    rows = [
        row
        for drift in sorted(drifts, key=lambda drift: Version(drift.version), reverse=True)
        for row in _rows(drift)
    ]
    return [
        "# What `pip install vllm==X` gives today",
        "",
        "Written by `vllm-regress drift`; do not edit. Each release was installed with the newest packages that its requirements allowed on the",
        "day in the table, without a pin. Then its server was imported, its help printed, and a server started on the simulated",
        "device until it answered one token. Where a stage fails, the packages that differ from the day after the release were searched for the",
        "one to blame. A pin is confirmed if the release was installed once more with it and passed every stage.",
        "",
        _summary(drifts),
        "",
        *markdown_table(_COLUMNS, rows),
    ]


def _summary(drifts: Collection[Drift]) -> str:
    sound, mended = sum(drift.sound for drift in drifts), sum(drift.confirmed for drift in drifts)
    blamed = Counter(
        name
        for drift in drifts
        for name in {c.package for breakage in drift.breakages for c in breakage.culprits}
    )
    counts = ", ".join(f"{name} {count}" for name, count in blamed.most_common())
    return (
        f"Of {len(drifts)} releases, {sound} pass as they are, {mended} with the pins below, and {len(drifts) - sound - mended} do not pass."
        + (f" Releases broken by each package: {counts}." if counts else "")
    )


def _rows(drift: Drift) -> list[tuple[str, ...]]:
    day = drift.day.isoformat()
    if drift.sound:
        return [(drift.version, drift.python, day, "nothing fails", "", "", "", "")]
    rows: list[tuple[str, ...]] = []
    for breakage in drift.breakages:
        reason = f"{breakage.stage}: {breakage.reason[:160]}"
        confirmed = "yes" if drift.confirmed else "no"
        for culprit in breakage.culprits:
            change = f"{culprit.package} {culprit.then} -> {culprit.today or 'absent'}"
            pin = f"{culprit.package}{culprit.pin}"
            rows.append(
                (drift.version, drift.python, day, reason, change, culprit.bad, pin, confirmed)
            )
        if not breakage.culprits:
            why = (
                "does not resolve as of its first day either"
                if drift.then
                else "fails with the packages of its first day, too"
            )
            rows.append((drift.version, drift.python, day, reason, why, "", "", ""))
    return rows


def _drift(version: str, entry: Mapping[str, Any]) -> Drift:
    breakages = tuple(
        Breakage(
            Stage(fields["stage"]),
            str(fields["reason"]),
            tuple(Culprit(**culprit) for culprit in fields["culprits"]),
        )
        for fields in entry["breakages"]
    )
    day = datetime.date.fromisoformat(entry["day"])
    return Drift(
        str(Version(version)),
        day,
        breakages,
        dict(entry["pins"]),
        bool(entry["confirmed"]),
        str(entry["then"]),
        str(entry["python"]),
    )
