"""``vllm-regress explain``."""

from __future__ import annotations

from ..answers.explain import log
from ..answers.fixes.installed_lines import InstalledSources
from ..answers.fixes.suggestions import suggestions
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

SCHEMA_VERSION = 2
MAX_SHOWN = 300
MAX_FOLLOW_UPS = 5
UNDOCUMENTED = 5
"""Exit code for a failure that no case documents."""


def explain(
    command: Invocation,
    file: str,
    about: str = "",
    env: str | None = None,
    format: TextOrJson = "text",
) -> int:
    """Say which known failure a log shows, why, and what to do.

    Names the lines that show each failure, the root cause first. The log is only read. An
    interpreter given as --env is started once, to find its packages.

    Exit codes: 0 no failure; 1 a documented failure; 2 usage or bad input; 4 internal error; 5 only
    failures that no case documents.
    """

    cases = command.cases()
    sources = InstalledSources.of(env) if env is not None else None
    with log.opened(file, warn) as stream:
        source = "standard input" if file == "-" else file
        explanation = log.explain(stream, cases, source, about)
    fixes = suggestions(explanation, about, sources)
    if format == "json":
        suggested = [suggestion.to_json() for suggestion in fixes]
        print_json({"schema": SCHEMA_VERSION, **explanation.to_json(), "fixes": suggested})
    else:
        print_text(
            "explain.txt",
            explanation=explanation,
            fixes=fixes,
            logged=_logged,
            MAX_SHOWN=MAX_SHOWN,
            MAX_FOLLOW_UPS=MAX_FOLLOW_UPS,
        )
    for note in explanation.notes:
        warn(f"note: {note}")
    if explanation.findings:
        return UNEXPECTED
    return UNDOCUMENTED if explanation.unknown else OK


def _logged(name: str, text: str) -> str:
    """A log may have any text, of any length."""
    shortened = text if len(text) <= 3 * MAX_SHOWN else f"{text[: 3 * MAX_SHOWN]}..."
    return field(name, one_line(shortened))
