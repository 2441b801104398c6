"""``vllm-regress judge``."""

from __future__ import annotations

from pathlib import Path

from ..cases import results
from ..cases.proofs.rejudge import rejudge_case
from ..cases.stored import read_stored, stored_results
from ..errors import UsageError
from ..util.files import check_distinct
from .context import OK, UNEXPECTED, Invocation, Paths, say, warn


def judge(command: Invocation, case_id: str, stored: Paths = None, out: Path | None = None) -> int:
    """Judge stored results again after a change of the case.

    Recomputes the verdicts after the kind, pattern, parts or range were changed. Runs nothing.
    Lists which verdicts change, and which observations are out of date because a test or probe
    changed since. Exit codes: 0 all verdicts as expected and no observation is out of date; 1
    otherwise; 2 usage or bad input.
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
    for judgement in judgements:
        now, before = judgement.now, judgement.before.verdict.value
        change = f"{before} -> {now.verdict.value}" if judgement.changed else now.verdict.value
        say(f"{change:34} {now.environment} on {now.device}: {now.test}")
        say(f"    {now.reason}")
        if judgement.stale:
            say(f"    out of date: {judgement.stale}")
    if out is not None:
        results.write_results(out, results.RunResult(tuple(entry.now for entry in judgements)))
    stale = sum(bool(judgement.stale) for judgement in judgements)
    changed = sum(judgement.changed for judgement in judgements)
    say(
        f"observations judged again: {len(judgements)}; verdicts changed: {changed}; out of date: {stale}"
    )
    return OK if all(entry.now.expected and not entry.stale for entry in judgements) else UNEXPECTED
