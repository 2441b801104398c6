"""The format of case files: which one can be read, and how a parsed file of an older one becomes
the current."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from typing import Any

from ..util.validation import format_value
from .control import RESERVED_KEYS

FORMAT = 1
"""The current format. CONTRIBUTING.md lists what may change within one."""
_MAX_LINE = 200
_INVISIBLE = re.compile("[\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that texts of a case could hold before format 1."""


def format_problem(document: MutableMapping[str, Any]) -> str:
    """Return why a case file's format cannot be read; empty if it can.

    A file without ``format`` is older than format 1 and can be.
    """
    declared = document.get("format", FORMAT)
    if declared == FORMAT:
        return ""
    newer = isinstance(declared, int) and declared > FORMAT
    advice = "Upgrade pytest-vllm-regress" if newer else "Write format = 1"
    return f"format = {format_value(declared)}: this version reads format {FORMAT}. {advice}"


def upgrade(document: MutableMapping[str, Any]) -> list[str]:
    """Rewrite a parsed case file in place to the current format, and return the changes.

    What cannot be rewritten stays as it is.
    """
    if "format" in document:
        return []
    changes = [*_upgrade_control(document.get("control")), *_remove_invisible(document, "")]
    document["format"] = FORMAT
    return [f"added format = {FORMAT}", *changes]


def _upgrade_control(control: Any) -> Iterator[str]:
    """``reason`` became ``omits``, which is one line and required where the control leg changes
    something."""
    if not isinstance(control, MutableMapping):
        return
    reason = control.get("reason")
    if isinstance(reason, str) and "omits" not in control:
        line = " ".join(reason.split())
        del control["reason"]
        control["omits"] = line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 4] + " ..."
        yield "control.reason is called omits"
    changed = {
        name: value for name, value in control.items() if name not in (*RESERVED_KEYS, "reason")
    }
    if changed and not {"omits", "none", "reason"}.intersection(control):
        control["omits"] = ", ".join(
            f"{name} other than {value}" for name, value in changed.items()
        )[:_MAX_LINE]
        yield f"added control.omits = {control['omits']!r}"


def _remove_invisible(table: MutableMapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in list(table.items()):
        if isinstance(value, MutableMapping):
            yield from _remove_invisible(value, f"{prefix}{name}.")
        elif name != "pattern" and isinstance(value, str) and _INVISIBLE.search(value):
            table[name] = _INVISIBLE.sub("", value)
            yield f"removed invisible characters from {prefix}{name}"
