"""``vllm-regress uses``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..answers.api_history.store import history
from ..answers.uses.answer import answer
from ..answers.uses.presentation import report, to_json, to_sarif
from ..answers.uses.project import read_project
from ..answers.uses.use import Project
from ..errors import UsageError
from .context import OK, UNEXPECTED, Invocation, Names, print_json, print_report, warn

if TYPE_CHECKING:
    from ..answers.uses.smoke import Smoke


def uses(
    command: Invocation,
    path: Path | None = None,
    diff: tuple[str, str] | None = None,
    ignore: Names = None,
    format: Literal["text", "json", "markdown", "sarif"] = "text",
    environments: Names = None,
) -> int:
    """Find the releases that have everything a project uses.

    Reads its files, of which it imports and runs nothing. With --env it also imports and binds each
    use, and starts each server command, in these environments.

    Exit codes: 0 no release in the declared range (vllm>=X,<Y) breaks the project, or none is
    declared; 1 one does, or an environment of --env lacks something or a server does not start
    there; 2 usage or bad input; 3 an environment could not be built; 4 internal error.
    """

    if format == "sarif" and (diff or environments):
        raise UsageError("--format sarif does not go with --diff and --env")
    if diff is not None:
        if ignore or environments:
            raise UsageError("--diff does not go with --ignore and --env")
        return _print_diff(diff, path, format)
    path = path or Path()
    result = answer(read_project(path, history()), history(), ignore or ())
    source = str(path)
    smokes: list[Smoke] = []
    if environments:
        from ..answers.uses.smoke import smoke
        from ..engines.standalone import bare_session

        command.confirm_downloads(environments)
        with bare_session(warn, device="sim") as session:
            smokes = [
                smoke(session, name, result.project, history(), warn) for name in environments
            ]
    if format == "sarif":
        print_json(to_sarif(result, source))
    else:
        print_report(format, report(result, source, smokes), to_json(result, source, smokes))
    _print_notes(result.project)
    return UNEXPECTED if result.broken or any(smoke.failed for smoke in smokes) else OK


def _print_diff(versions: tuple[str, str], path: Path | None, format: str) -> int:
    from ..answers.uses.diff import diff, release_number, report, to_json

    before, after = (release_number(history(), version) for version in versions)
    project = read_project(path, history()) if path is not None else None
    used_changes = diff(history(), before, after, project)
    print_report(format, report(used_changes, versions), to_json(used_changes, versions))
    if project is not None:
        _print_notes(project)
    return OK


def _print_notes(project: Project) -> None:
    for note in project.notes:
        warn(f"note: {note}")
