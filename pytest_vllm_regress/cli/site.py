"""``vllm-regress site``."""

from __future__ import annotations

from pathlib import Path

from ..environments.recipes import find_file, load
from ..output.pages.site import write_site
from ..util.paths import shipped
from .context import Invocation, say, warn


def site(command: Invocation, out: Path) -> None:
    """Write a web site of all cases, releases and verdicts.

    It is for any static host and has everything that is recorded about the cases: an overview, a
    page and history for each case, a page and an SVG badge for each release of vLLM, and the
    documentation if this is a checkout of the project. Runs nothing. All links are checked first;
    those that lead nowhere in the README of a case are named, there and on standard error.
    DIR/index.html also works without a server.

    Exit codes: 0 written; 2 usage or bad input, such as a link that leads nowhere; 4 internal
    error.
    """

    project = shipped("cases").parent
    docs = project if (project / "docs" / "README.md").is_file() else None
    written = write_site(out, command.cases(), load(find_file()).locks, docs)
    for note in written.notes:
        warn(f"note: {note}")
    say(f"site: {out / 'index.html'} ({written.files} files)")
