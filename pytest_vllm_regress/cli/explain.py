"""``vllm-regress explain``."""

from __future__ import annotations

from ..answers.explain import log
from ..answers.explain.explanation import Explanation, LogMatch, UnknownFailure
from ..util.text import one_line
from .context import (
    OK,
    UNEXPECTED,
    Invocation,
    TextOrJson,
    print_field,
    print_json,
    print_upstream,
    say,
    warn,
)

SCHEMA_VERSION = 1
MAX_SHOWN = 300


def explain(command: Invocation, file: str, format: TextOrJson = "text") -> int:
    """Say which documented failures a log shows, and what to do.

    Names the lines that show each failure. Reads the log and runs nothing.

    Exit codes: 0 no documented failure; 1 a documented failure; 2 usage or bad input; 4 internal
    error.
    """

    cases = command.cases()
    with log.opened(file, warn) as stream:
        explanation = log.explain(stream, cases, "standard input" if file == "-" else file)
    if format == "json":
        print_json({"schema": SCHEMA_VERSION, **explanation.to_json()})
    else:
        _print(explanation)
    for note in explanation.notes:
        warn(f"note: {note}")
    return UNEXPECTED if explanation.findings else OK


def _print(explanation: Explanation) -> None:
    named = ", ".join(
        f"{named.package} {named.version} (line {named.number})"
        for named in explanation.versions[:10]
    )
    say(f"{one_line(explanation.source)}: {named or 'names no version'}")
    count = len(explanation.findings)
    say(f"{count or 'no'} documented failure{'' if count == 1 else 's'}")
    for finding in explanation.findings:
        _print_finding(finding)
    if explanation.unknown:
        say("\nNot documented:")
    for failure in explanation.unknown:
        _print_unknown(failure)


def _print_finding(finding: LogMatch) -> None:
    case = finding.case
    say(f"\n{case.id}: {case.title}")
    _field("certainty", f"{finding.certainty}: {finding.reason}")
    more = (
        f" and {finding.count - len(finding.lines)} more"
        if finding.count > len(finding.lines)
        else ""
    )
    _field("lines", f"{', '.join(map(str, finding.lines))}{more}")
    _field("text", finding.text)
    if finding.alternatives:
        _field("or it is", f"{', '.join(finding.alternatives)}, with the same text")
    _field("affected", case.affected_text())
    print_upstream(case)


def _print_unknown(failure: UnknownFailure) -> None:
    signature = failure.signature
    times = f" ({failure.count} times)" if failure.count > 1 else ""
    say(
        f"\nline {failure.line}{times}: {one_line(signature.exception)}: {one_line(failure.message[:MAX_SHOWN])}"
    )
    _field("phase", signature.phase)
    _field("raised in", " < ".join(signature.frames))
    _field("search for", failure.search_text)
    _field("new case", failure.command())


def _field(name: str, text: str) -> None:
    """A log may have any text, of any length."""
    shortened = text if len(text) <= 3 * MAX_SHOWN else f"{text[: 3 * MAX_SHOWN]}..."
    print_field(name, one_line(shortened))
