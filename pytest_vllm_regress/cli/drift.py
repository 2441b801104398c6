"""``vllm-regress drift``: try whether releases still install and start."""

from __future__ import annotations

import contextlib
import datetime
import re
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..util.files import write_atomically
from ..util.signals import terminate_as_interrupt
from .context import (
    DISK,
    HELP,
    OK,
    UNEXPECTED,
    AsJson,
    disk_limit,
    print_json,
    say,
    warn,
)

app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(
    epilog="Exit codes: 0 every release installs, starts and answers; 1 some do not; 2 usage; 3 the package index cannot be asked; "
    "130 interrupted."
)
def drift(
    versions: Annotated[
        list[str] | None, typer.Argument(metavar="VERSION", help="Releases of vLLM: 0.11.2.")
    ] = None,
    specifier: Annotated[
        str | None,
        typer.Option(
            "--releases",
            metavar="SPECIFIER",
            help="All stable releases in this range: '>=0.8,<0.10'.",
        ),
    ] = None,
    python: Annotated[
        str, typer.Option("--python", metavar="X.Y", help="Version of Python to install for.")
    ] = "3.11",
    disk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help=f"Most disk space for downloads and installations (default with --releases: {DISK}).",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Try releases even if the record has them of today.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FILE.json",
            help="Read and save all results here, after each release.",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE.md", help="Write the table of all results."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try whether releases still install and start today.

    That is with the newest packages that their requirements allow.

    Where one does not, the dependency to blame is searched among those that are newer than on the
    day after the release, its first bad version is bisected, and the pin that restores the release
    is confirmed by one more installation. Nothing but vLLM's own requirements is used: no lock, and
    no rule of environments.toml. The server runs on the simulated device. Releases that --record
    has of today are not tried again.
    """
    from ..surveys.drift.diagnosis import diagnose
    from ..surveys.drift.installation import Release, limited_downloads
    from ..surveys.drift.record import known_culprits, read_record, table, to_json, write_record

    if not re.fullmatch(r"3\.([89]|\d\d)", python):
        raise UsageError(f"--python {python!r}: allowed is a minor version of Python, such as 3.11")
    chosen = _releases(versions or (), specifier)
    drifts = read_record(record) if record else {}
    today = datetime.datetime.now(datetime.UTC).date()
    size = disk or (DISK if specifier else None)
    limited = limited_downloads(disk_limit(size)) if size else contextlib.nullcontext(lambda: None)
    with terminate_as_interrupt(), limited as make_room:
        for version in chosen:
            recorded = drifts.get(version)
            if again or recorded is None or (recorded.day, recorded.python) != (today, python):
                make_room()
                drifts[version] = diagnose(
                    Release(version, today, python), warn, known_culprits(drifts.values())
                )
                if record:
                    write_record(record, drifts)
            if not as_json:
                for line in drifts[version].lines():
                    say(line)
    if write:
        write_atomically(write, "".join(f"{line}\n" for line in table(drifts.values())))
    if as_json:
        print_json({version: to_json(drifts[version]) for version in chosen})
    raise typer.Exit(OK if all(drifts[version].sound for version in chosen) else UNEXPECTED)


def _releases(versions: list[str] | tuple[str, ...], specifier: str | None) -> list[str]:
    """Return the releases to try, newest first, so that consecutive ones share downloads.

    Raises ``UsageError``.
    """
    from ..environments.index.releases import known_releases, releases_in
    from ..util.validation import did_you_mean
    from ..util.versions import version_of

    known = {str(version) for version in known_releases("vllm")}
    for text in versions:
        if version_of(text) is None:
            raise UsageError(f"drift {text}: not a version.{did_you_mean(text, known)}")
    chosen = {version for text in versions if (version := version_of(text)) is not None}
    if specifier is not None:
        chosen |= set(releases_in("vllm", specifier))
    if not chosen:
        raise UsageError(
            "drift: name releases (drift 0.11.2) or a range of them (--releases '>=0.11')"
        )
    return [str(version) for version in sorted(chosen, reverse=True)]
