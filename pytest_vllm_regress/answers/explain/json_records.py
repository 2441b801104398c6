"""Records of logs that are written as JSON, one a line: docker, Loki, CloudWatch, fluentd,
structlog, and answers of an API. The field with the message is found, not configured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_ESCAPED = re.compile(r"(?<!\\)(?:\\r)?\\n")
_MESSAGES = frozenset(
    {"log", "message", "msg", "event", "line", "body", "textpayload", "text", "error", "detail"}
)
_DETAILS = frozenset(
    {"exception", "exc_info", "exc_text", "stack", "stack_trace", "stacktrace", "traceback"}
)
_WRITTEN = frozenset({"prompt", "content", "messages", "choices", "input", "query", "completion"})
"""Fields that a client or a model wrote: no evidence of anything."""
_MAX_DEPTH = 6
_LITERAL = ('File "', 'File \\"', "Traceback (most")


def lines_in(text: str) -> list[str]:
    """Return the lines in a line of a log: several if it is a record, or if a traceback is written
    with escaped ends of lines."""
    stripped = text.strip()
    at = stripped.find("{")
    if 0 <= at < 200 and '"' in stripped[at : at + 40] and stripped.endswith("}"):
        try:
            record = json.loads(stripped[at:])
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            lines = [line for message in _messages(record) for line in message.splitlines()]
            if lines:
                return [f"{stripped[:at]}{line}" if at else line for line in lines]
    if "\\n" in text and (text.lstrip().startswith("{") or any(map(text.__contains__, _LITERAL))):
        return _ESCAPED.split(text.replace('\\"', '"'))
    return [text]


def _messages(record: dict[str, Any], depth: int = 0) -> Iterator[str]:
    """Yield the texts of messages in a record, those of its exceptions last."""
    if depth > _MAX_DEPTH:
        return
    late: list[str] = []
    kind = next((record[key] for key in ("type", "code") if isinstance(record.get(key), str)), "")
    level = next((record[key] for key in ("level", "severity", "levelname") if key in record), "")
    for key, value in record.items():
        name = key.lower()
        if name in _WRITTEN:
            continue
        if isinstance(value, dict):
            yield from _messages(value, depth + 1)
        elif not isinstance(value, str):
            continue
        elif name in _DETAILS:
            late.append(value)
        elif name in _MESSAGES:
            yield _labelled(value, str(kind), str(level))
    yield from late


def _labelled(message: str, kind: str, level: str) -> str:
    if kind.endswith(("Error", "Exception")):
        return f"{kind}: {message}"
    quiet = level.upper() in ("INFO", "DEBUG", "TRACE")
    return f"INFO: {message}" if quiet and "Traceback" not in message else message
