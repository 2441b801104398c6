"""``vllm-regress judge``: verdicts anew from stored results, without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .context import HELP, OK, UNEXPECTED, invocation, say, warn

if TYPE_CHECKING:
    from ..cases.results import RunResult

app = typer.Typer(context_settings=HELP)


@app.command()
def judge(
    context: typer.Context,
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="The case's id.")],
    stored: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE|DIR]",
            help="Result files, or folders of them (default: what the case's proof saw, and the copies of your last runs).",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE.json", help="Write the results with their new verdicts there."),
    ] = None,
) -> None:
    """Give the verdicts of a case anew from what earlier runs saw, after a change of its kind, pattern, parts or range.

    Runs nothing. Says which verdicts change, and which observations no longer fit because a test or probe has changed since.
    Exit codes: 0 all verdicts as expected and every observation fits; 1 not; 2 usage or bad input.
    """
    from ..cases import results
    from ..cases.model import select
    from ..cases.rejudge import FILE, judge_again
    from ..util.paths import cache_root

    (case,) = select(invocation(context).cases(), [case_id])
    files = _files(stored or [case.directory / FILE, cache_root() / "results"])
    found = judge_again(case, _readable(files, strict=bool(stored)))
    if not found:
        raise UsageError(
            f"no result of {case.id} in {len(files)} result files. Run it first: `{invocation(context).command('run', case.id)}`"
        )
    for each in found:
        change = f"{each.before.verdict.value} -> {each.now.verdict.value}" if each.changed else each.now.verdict.value
        say(f"{change:34} {each.now.environment} on {each.now.device}: {each.now.test}")
        say(f"    {each.now.reason}")
        if each.stale:
            say(f"    does not fit any more: {each.stale}")
    if write is not None:
        results.write(write, results.RunResult(tuple(each.now for each in found)))
    stale = sum(bool(each.stale) for each in found)
    changed = sum(each.changed for each in found)
    say(f"{len(found)} observations judged again: {changed} verdicts changed, {stale} do not fit any more")
    raise typer.Exit(OK if all(each.now.expected and not each.stale for each in found) else UNEXPECTED)


def _files(paths: list[Path]) -> list[Path]:
    """Those that are named, and those of folders; of the usual places those that are there."""
    found = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not found:
        raise UsageError(f"no result files in {', '.join(map(str, paths))}. `vllm-regress run` writes them")
    return found


def _readable(files: list[Path], *, strict: bool) -> list[RunResult]:
    """What the files hold. Copies of earlier runs may be of another format: those are named and left out."""
    from ..cases import results

    found = []
    for file in files:
        try:
            found.append(results.read(file))
        except UsageError as error:
            if strict:
                raise
            warn(f"left out: {error}")
    return found
