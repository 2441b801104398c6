"""``vllm-regress judge``."""

from __future__ import annotations

from pathlib import Path

from ..cases import results
from ..cases.proofs.rejudge import rejudge_case
from ..cases.stored import read_stored, stored_results
from ..errors import UsageError
from ..util.files import check_distinct
from .context import OK, UNEXPECTED, Invocation, Paths, print_text, warn


def judge(command: Invocation, case_id: str, stored: Paths = None, out: Path | None = None) -> int:
    """Judge stored results again after a change of the case.

    Recomputes the verdicts after the kind, pattern, parts or range were changed. Runs nothing.
    Lists which verdicts change, and which observations are out of date because a test or probe
    changed since.

    Exit codes: 0 all verdicts as expected and no observation is out of date; 1 otherwise; 2 usage
    or bad input.
    """

    (case,) = command.select([case_id])
    files = stored_results(case, stored or ())
    if out is not None:
        check_distinct([out], files)
    judgements = rejudge_case(case, read_stored(files, warn, strict=bool(stored)))
    if not judgements:
        raise UsageError(
            f"no result of {case.id} in the {len(files)} files that were read. Run it first: `{command.command('run', case.id)}`"
        )
    print_text("judge.txt", judgements=judgements)
    if out is not None:
        results.write_results(out, results.RunResult(tuple(entry.now for entry in judgements)))
    return OK if all(entry.now.expected and not entry.stale for entry in judgements) else UNEXPECTED
