"""``vllm-regress survey drift``."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Sequence
from typing import Annotated

import typer

from ...environments.releases import releases_in
from ...errors import UsageError
from ...surveys.drift import (
    DatedRelease,
    diagnose,
    known_culprits,
    limited_downloads,
    open_drifts,
    report,
)
from ...util.signals import terminate_as_interrupt
from ...util.versions import version_of
from ..context import DISK, OK, UNEXPECTED, Fresh, disk_limit, say, warn
from .shared import Format, resumed, show

EPILOG = (
    "Exit codes: 0 every release installs, starts and answers; 1 some do not; 2 usage; "
    "3 the package index cannot be asked; 130 interrupted."
)


def drift(
    releases: Annotated[
        list[str],
        typer.Option(
            metavar="RANGE",
            help="All stable releases of vLLM in this range, '>=0.8,<0.10', or one: 0.11.2. Repeatable.",
        ),
    ],
    python: Annotated[
        str, typer.Option(metavar="X.Y", help="Version of Python to install for.")
    ] = "3.11",
    disk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help=f"Most disk space for downloads and installations (default {DISK}; for one release no limit).",
        ),
    ] = None,
    fresh: Fresh = False,
    format: Format = "text",
) -> None:
    """Try whether releases still install and start today.

    A release is installed with the newest packages that its requirements allow today. Where it does
    not start or answer, the dependency to blame is searched among those that are newer than on the
    day after the release, its first bad version is bisected, and the pin that restores the release
    is confirmed by one more installation. Nothing but vLLM's own requirements is used: no lock, and
    no rule of environments.toml. The server runs on the simulated device.
    """
    if not re.fullmatch(r"3\.([89]|\d\d)", python):
        raise UsageError(f"--python {python!r}: allowed is a minor version of Python, such as 3.11")
    chosen = chosen_releases(releases)
    today = datetime.datetime.now(datetime.UTC).date()
    size = disk or (DISK if len(chosen) > 1 else None)
    limited = limited_downloads(disk_limit(size)) if size else contextlib.nullcontext(lambda: None)
    command = [*chosen, python, today.isoformat()]
    with (
        resumed(open_drifts, command, fresh=fresh) as drifts,
        terminate_as_interrupt(),
        limited as make_room,
    ):
        for version in chosen:
            if version not in drifts:
                make_room()
                known = known_culprits(drifts.entries.values())
                drifts.add(version, diagnose(DatedRelease(version, today, python), warn, known))
        results = dict(drifts.entries)
        drifts.remove()
    show(report(results.values()), results, format)
    for drift in results.values() if format == "text" else ():
        if drift.confirmed:
            say(f"this works (installed and started): {drift.command}")
    raise typer.Exit(OK if all(drift.sound for drift in results.values()) else UNEXPECTED)


def chosen_releases(ranges: Sequence[str]) -> list[str]:
    """Return the releases to try, newest first, so that consecutive ones share downloads.

    A version means this release, also one that was yanked. Raises ``UsageError``.
    """
    chosen = set()
    for text in ranges:
        version = version_of(text.removeprefix("=="))
        chosen |= set(releases_in("vllm", text)) if version is None else {version}
    return [str(version) for version in sorted(chosen, reverse=True)]
