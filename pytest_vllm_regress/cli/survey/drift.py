"""``vllm-regress survey drift``."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Sequence

from ...environments.releases import releases_in
from ...errors import UsageError
from ...surveys.drift import DatedRelease, diagnose, limited_downloads
from ...surveys.drift_record import known_culprits, open_drifts, report
from ...util.versions import version_of
from ..context import DISK, OK, UNEXPECTED, Format, disk_limit, print_report, say, warn
from .shared import resumed


def drift(
    releases: list[str],
    python: str = "3.11",
    disk: str | None = None,
    fresh: bool = False,
    format: Format = "text",
) -> int:
    """Try whether releases still install and start today.

    A release is installed with the newest packages that its requirements allow today. Where it does
    not start or answer, the dependency to blame is searched among those that are newer than on the
    day after the release, its first bad version is bisected, and the pin that restores the release
    is confirmed by one more installation. Nothing but vLLM's own requirements is used: no lock, and
    no rule of environments.toml. The server runs on the simulated device.

    Exit codes: 0 every release installs, starts and answers; 1 some do not; 2 usage; 3 the package
    index cannot be asked; 130 interrupted.
    """
    if not re.fullmatch(r"3\.([89]|\d\d)", python):
        raise UsageError(f"--python {python!r}: allowed is a minor version of Python, such as 3.11")
    chosen = chosen_releases(releases)
    today = datetime.datetime.now(datetime.UTC).date()
    size = disk or (DISK if len(chosen) > 1 else None)
    limited = limited_downloads(disk_limit(size)) if size else contextlib.nullcontext(lambda: None)
    command = [*chosen, python, today.isoformat()]
    with resumed(open_drifts, command, fresh=fresh) as drifts, limited as make_room:
        for version in chosen:
            if version not in drifts:
                make_room()
                known = known_culprits(drifts.entries.values())
                drifts.add(version, diagnose(DatedRelease(version, today, python), warn, known))
        results = dict(drifts.entries)
        drifts.remove()
    print_report(format, report(results.values()), results)
    for drift in results.values() if format == "text" else ():
        if drift.confirmed:
            say(f"this works (installed and started): {drift.command}")
    return OK if all(drift.sound for drift in results.values()) else UNEXPECTED


def chosen_releases(ranges: Sequence[str]) -> list[str]:
    """Return the releases to try, newest first, so that consecutive ones share downloads.

    A version means this release, also one that was yanked. Raises ``UsageError``.
    """
    chosen = set()
    for text in ranges:
        version = version_of(text.removeprefix("=="))
        chosen |= set(releases_in("vllm", text)) if version is None else {version}
    return [str(version) for version in sorted(chosen, reverse=True)]
