"""The results of a run of upstream's tests as lines for people and as a JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from .run import UpstreamRun
from .triage import TestResult, UpstreamOutcome, counts, share_passed

SCHEMA_VERSION = 1
_SHOWN = 20
"""Names in a line."""


def lines(run: UpstreamRun) -> Iterator[str]:
    """Yield each test that did not pass although it could run, then a summary."""
    for result in run.results:
        if result.outcome in (UpstreamOutcome.FAILED, UpstreamOutcome.MEANING):
            yield f"{result.outcome}: {result.test}: {result.reason}"
    share = share_passed(run.results)
    words = "-" if share is None else format(share, ".0%")
    reached = {result.file for result in run.results}
    yield f"{len(reached)} of {len(run.files)} files in {run.seconds:.0f} s; passed of the tests that were not skipped: {words}"
    if missed := [file for file in run.files if file not in reached]:
        yield f"without a result, because the run ended before or they have no tests here: {_some(missed)}"
    if run.dossiers:
        yield f"dossiers of servers that did not start: {_some([str(path) for path in run.dossiers])}"
    if run.without_stand_in:
        yield f"no stand-in for {_some(run.without_stand_in)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )


def count_rows(results: Iterable[TestResult]) -> list[tuple[str, str]]:
    """Return the outcomes that occurred and the number of tests of each."""
    number = counts(results)
    return [(outcome.value, str(number[outcome])) for outcome in UpstreamOutcome if number[outcome]]


def document(run: UpstreamRun, version: str, commit: str) -> str:
    """Return the JSON document of a run of the tests of ``commit`` on vLLM ``version``."""
    results = [
        {
            "test": result.test,
            "outcome": result.outcome.value,
            "reason": result.reason,
            "seconds": result.seconds,
        }
        for result in run.results
    ]
    content = {
        "schema": SCHEMA_VERSION,
        "vllm": version,
        "commit": commit,
        "files": list(run.files),
        "seconds": round(run.seconds, 1),
        "results": results,
    }
    return json.dumps(content, indent=1) + "\n"
