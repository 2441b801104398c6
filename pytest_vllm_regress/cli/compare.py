"""``vllm-regress compare``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..answers.audit import comparison
from ..answers.audit.matching import Inventory, require_checkable, severity
from ..answers.audit.target import read_side, read_sides
from ..answers.deployments.configuration import Deployment, read_deployments
from ..answers.fixes.index import Fix, fix_index
from ..answers.fixes.later import (
    UpstreamRegression,
    named_regressions,
    patch_releases,
    weeks_after,
)
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

MAX_REGRESSIONS = 10
MAX_WEEKS = 12


def compare(
    command: Invocation,
    before: str,
    after: str | None = None,
    format: Format = "text",
    run: bool = False,
    serve: str | None = None,
    newer: bool = False,
) -> int:
    """Say what a change of versions breaks, fixes and leaves.

    Reads recorded results and ranges, and runs only with --run. With --serve it says whether the
    deployment starts with the second version, leaves out what it cannot show, lists what it can reach
    before what is unknown, and what it uses and the second version does not have. With --newer
    it says of one release how settled it is: which fixes landed after it, week by week.

    Exit codes: 0 nothing new breaks; 1 something that worked before fails, the deployment uses what
    is gone, or it does not start; 2 usage or bad input; 4 internal error.
    """

    deployments = read_deployments(serve) if serve is not None else ()
    if (after is None) != newer:
        raise UsageError("compare: give a second version, or --newer for all that came after A")
    if after is None:
        _print_weeks(read_side(before), deployments, as_json=format == "json")
        return OK
    cases = command.cases()
    old, new = read_sides(before, after)
    require_checkable([old, new], cases)
    result = comparison.compare(old, new, cases, (), deployments)
    if run:
        concerned = [change.case for change in result.changes]
        missing = {
            _environment(name): comparison.not_recorded(side, concerned)
            for name, side in ((before, old), (after, new))
        }
        result = comparison.compare(old, new, cases, _run(command, missing), deployments)
    fixes, regressions = _of_upstream(old, new, deployments)
    if format == "json":
        names = {name: [fix.name for fix in group] for name, group in fixes}
        corrected = [regression.to_json() for regression in regressions]
        upstream = {"upstream_fixes": names, "upstream_regressions": corrected}
        print_json({"schema": 1, **result.to_json(), **upstream})
    elif format == "markdown":
        say(result.markdown())
    else:
        if result.start:
            say(result.will_start())
        for use in result.used:
            say(f"no longer there: {use}")
        rows = [
            (*change.reach_cells, change.effect, case.id, severity(case), change.after, case.title)
            for change in result.changes
            for case in [change.case]
        ]
        here = ("here",) if deployments else ()
        print_columns((*here, "effect", "case", "severity", "after the change", "failure"), rows)
        say(f"{result.before} to {result.after}: {result.counts()}")
        if fixes:
            total = sum(len(group) for _, group in fixes)
            say(f"upstream names {total} fixes in between (not proven here): {counts(fixes)}")
        _print_regressions(regressions)
    for note in result.notes:
        warn(f"note: {note}")
    return UNEXPECTED if result.worse else OK


def _of_upstream(
    old: Inventory, new: Inventory, deployments: Sequence[Deployment]
) -> tuple[list[tuple[str, list[Fix]]], list[UpstreamRegression]]:
    """Return what upstream calls a fix and only the second side has, by subsystem, and what it
    corrected later of all that only this side has."""
    before, after = vllm_version(old.versions), vllm_version(new.versions)
    if before is None or after is None:
        return [], []
    index = fix_index()
    regressions = named_regressions(index, before, after, _options(deployments))
    return by_subsystem(between(index, before, after)), regressions


def _options(deployments: Sequence[Deployment]) -> dict[str, Any]:
    return {name: value for entry in deployments for name, value in entry.options.items()}


def _print_regressions(regressions: Sequence[UpstreamRegression]) -> None:
    if not regressions:
        return
    kinds = Counter(str(regression.correction) for regression in regressions)
    count = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common())
    say(f"upstream corrected it {len(regressions)} times afterwards (not proven here): {count}")
    for regression in regressions[:MAX_REGRESSIONS]:
        say(f"  {regression.text}")
    if len(regressions) > MAX_REGRESSIONS:
        say("  --format json lists all")


def _print_weeks(release: Inventory, deployments: Sequence[Deployment], *, as_json: bool) -> None:
    """Print how many fixes landed after a release, week by week."""
    version, index = vllm_version(release.versions), fix_index()
    weeks = weeks_after(index, version, _options(deployments)) if version else []
    if version is None or not weeks:
        raise UsageError(
            f"--newer: the history of vLLM's changes, from {index.releases[0]} to "
            f"{index.until_date}, does not have what came after {release.source}"
        )
    patches = patch_releases(index, version)
    if as_json:
        found = {"patch_releases": patches, "weeks": [week.to_json() for week in weeks]}
        print_json({"schema": 1, "version": version, "until": index.until_date, **found})
        return
    rows = [
        (
            week.first_day,
            str(len(week.fixes)),
            str(len(week.taken)),
            ", ".join(f"{name} {count}" for name, count in list(week.subsystems.items())[:4]),
        )
        for week in weeks[:MAX_WEEKS]
    ]
    print_columns(("week from", "fixes", "taken", "of these"), rows)
    total = sum(len(week.fixes) for week in weeks)
    taken = sum(len(week.taken) for week in weeks)
    picked = f"{taken} of them are in {' or '.join(patches)}" if patches else "no patch release"
    say(
        f"{version}: {total} fixes landed after its code was cut, until {index.until_date} (not "
        f"proven here); {picked}"
    )


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
