"""``vllm-regress compare``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from ..answers.audit import comparison
from ..answers.audit.matching import Inventory, require_checkable, severity
from ..answers.audit.target import read_sides
from ..answers.deployments.configuration import read_deployments
from ..answers.fixes.index import Fix, fix_index
from ..answers.fixes.overview import between, by_subsystem, counts, vllm_version
from ..cases.model import Case
from ..cases.results import TestResult
from ..errors import UsageError
from ..util.versions import is_version
from .context import (
    OK,
    UNEXPECTED,
    Format,
    Invocation,
    print_columns,
    print_json,
    say,
    warn,
)


def compare(
    command: Invocation,
    before: str,
    after: str,
    format: Format = "text",
    run: bool = False,
    serve: str | None = None,
) -> int:
    """Say what a change of versions breaks, fixes and leaves.

    Reads recorded results and ranges, and runs only with --run. With --serve it leaves out what the
    deployment cannot show, and lists what it uses and the new version does not have.

    Exit codes: 0 nothing new breaks; 1 something that worked before fails, or the deployment uses
    what is gone; 2 usage or bad input; 4 internal error.
    """

    cases = command.cases()
    old, new = read_sides(before, after)
    require_checkable([old, new], cases)
    deployments = read_deployments(serve) if serve is not None else ()
    result = comparison.compare(old, new, cases, (), deployments)
    if run:
        concerned = [change.case for change in result.changes]
        missing = {
            _environment(name): comparison.not_recorded(side, concerned)
            for name, side in ((before, old), (after, new))
        }
        result = comparison.compare(old, new, cases, _run(command, missing), deployments)
    fixes = _fixes(old, new)
    if format == "json":
        names = {name: [fix.name for fix in group] for name, group in fixes}
        print_json({"schema": 1, **result.to_json(), "upstream_fixes": names})
    elif format == "markdown":
        say(result.markdown())
    else:
        for use in result.used:
            say(f"no longer there: {use}")
        rows = [
            (change.effect, change.case.id, severity(change.case), change.after, change.case.title)
            for change in result.changes
        ]
        print_columns(("effect", "case", "severity", "after the change", "failure"), rows)
        left_out = f"; {result.unreachable} not reachable" if result.unreachable else ""
        say(f"{result.before} to {result.after}: {result.counts()}{left_out}")
        if fixes:
            total = sum(len(group) for _, group in fixes)
            say(f"upstream names {total} fixes in between (not proven here): {counts(fixes)}")
    for note in result.notes:
        warn(f"note: {note}")
    return UNEXPECTED if result.worse else OK


def _fixes(old: Inventory, new: Inventory) -> list[tuple[str, list[Fix]]]:
    """Return what upstream calls a fix and only the second side has, by subsystem."""
    before, after = vllm_version(old.versions), vllm_version(new.versions)
    if before is None or after is None:
        return []
    return by_subsystem(between(fix_index(), before, after))


def _environment(side: str) -> str:
    """Return the environment that runs a side of a comparison.

    Raises ``UsageError`` for a list of packages.
    """

    if Path(side).exists():
        raise UsageError(
            f"--run: {side} is a file or a directory: name an environment, such as vllm-0.8.4, or a release"
        )
    return f"vllm-{side}" if is_version(side) else side


def _run(command: Invocation, missing: Mapping[str, tuple[Case, ...]]) -> tuple[TestResult, ...]:
    """Run the cases that are missing in each environment, and return their results."""
    from ..runner.batch import Batch
    from ..runner.run import run_batches

    if sys.platform != "linux":
        raise UsageError("--run: Linux only, because it starts engines")
    batches = [Batch(name, cases, {}) for name, cases in missing.items() if cases]
    options = command.run_options(None)
    outcome = run_batches(command.request_here(batches, options, None, warn))
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome.run.results
