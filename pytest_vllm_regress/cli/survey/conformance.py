"""``vllm-regress survey conformance``."""

from __future__ import annotations

from ...errors import BuildError
from ...runner.executors import build_with_cache
from ...surveys.conformance import (
    open_runs,
    read_known,
    report,
    run_suite,
    suite_directory,
    unexplained,
)
from ..context import OK, UNBUILT, UNEXPECTED, Format, Invocation, print_report, warn
from .shared import resumed


def conformance(
    command: Invocation, environments: list[str], fresh: bool = False, format: Format = "text"
) -> int:
    """Run the conformance suite: which features work.

    Each check runs on each engine generation. Arguments after -- go to pytest: `-- -m smoke`, or
    `-- -k EXPRESSION` for some of the checks.

    Exit codes: 0 a known upstream failure explains every failed check; 1 otherwise; 2 usage; 3 an
    environment could not be built; 130 interrupted.
    """
    suite = suite_directory()
    known = read_known(suite / "known.toml")
    selection, names = command.pytest_args, list(dict.fromkeys(environments))
    with resumed(open_runs, [*names, *selection], fresh=fresh) as runs:
        measured = {ran.environment for ran in runs.entries.values()}
        unbuilt = False
        for name in names:
            if name in measured:
                warn(f"{name}: measured by an earlier run of the same command")
                continue
            try:
                build_with_cache(warn)(name)
            except BuildError as error:
                warn(f"{name}: {error}")
                unbuilt = True
                continue
            ran = run_suite(name, suite, selection)
            runs.add(ran.name, ran)
        results = list(runs.entries.values())
        if not unbuilt:
            runs.remove()
    print_report(format, report(results, known), [ran.to_json() for ran in results])
    return UNBUILT if unbuilt else UNEXPECTED if unexplained(results, known) else OK
