"""``vllm-regress explain``."""

from __future__ import annotations

from ..answers.explain import log
from ..util.text import one_line
from .context import (
    OK,
    UNEXPECTED,
    Invocation,
    TextOrJson,
    field,
    print_json,
    print_text,
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
        print_text("explain.txt", explanation=explanation, logged=_logged, MAX_SHOWN=MAX_SHOWN)
    for note in explanation.notes:
        warn(f"note: {note}")
    return UNEXPECTED if explanation.findings else OK


def _logged(name: str, text: str) -> str:
    """A log may have any text, of any length."""
    shortened = text if len(text) <= 3 * MAX_SHOWN else f"{text[: 3 * MAX_SHOWN]}..."
    return field(name, one_line(shortened))
