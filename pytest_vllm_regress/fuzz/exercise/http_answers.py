"""Answers of a server in a form that does not depend on time: identifiers, times and addresses are
replaced, and the events of a stream added up as a client does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_CONCATENATED = frozenset(
    [
        "content",
        "reasoning",
        "reasoning_content",
        "text",
        "arguments",
        "delta",
        "partial_json",
        "thinking",
        "refusal",
    ]
)
"""Texts that a stream sends in pieces."""
OF_TIME = re.compile(r"second|time|_created|_info|throughput|flops|bytes_|iteration|parser_inv")
"""Metrics that depend on time, on the machine, or on which requests run together."""
_OF_TIME = frozenset(("created", "created_at", "completed_at", "sequence_number", "obfuscation"))
_OF_RUN = _OF_TIME | {"system_fingerprint"}
"""vLLM's fingerprint of the system has its version in it, which each commit changes."""
_OF_PIECES = _OF_TIME | {"reasoning_tokens"}
"""vLLM 0.33 counts the tokens of reasoning by piece: the marker counts if it comes with a text."""
_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|(?<![A-Za-z])[0-9a-f]{16,64}(?![A-Za-z0-9])|(?<=call_)\w{8,}|(?<=toolu_)\w{8,}"
)
_SECONDS = 1.5e9
"""Numbers above this are times."""


def normalised(value: Any, hidden: Mapping[str, str] = {}) -> Any:
    """Return JSON without what differs from run to run. ``hidden``: texts, such as addresses, and
    what they are replaced by."""
    if isinstance(value, Mapping):
        return {
            key: normalised(member, hidden)
            for key, member in value.items()
            if key not in _OF_RUN and member is not None
        }
    if isinstance(value, list):
        return [normalised(member, hidden) for member in value]
    if isinstance(value, str):
        for text, name in hidden.items():
            value = value.replace(text, name)
        return _ID.sub("*", value)
    if isinstance(value, float) and not isinstance(value, bool):
        return "time" if value > _SECONDS else round(value, 3)
    return "time" if isinstance(value, int) and value > _SECONDS else value


def events_of(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the data of each event of a stream; what is no JSON stays text."""
    name = ""
    for line in lines:
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            text = line[5:].strip()
            try:
                yield name, json.loads(text)
            except ValueError:
                yield name, text
            name = ""


def added_up(events: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the sum of a stream's events of each type, the order in which types came for the first
    time, and what came after the end of its choice. How many pieces a text comes in is a matter of
    time."""
    sums: dict[str, Any] = {}
    late: set[str] = set()
    ended: set[object] = set()
    for name, data in events:
        key = str(data)[:200]
        if isinstance(data, dict):
            kind = str(data.get("type") or name)
            indices = (data.get(key) for key in ("output_index", "content_index", "index"))
            key = " ".join([kind, *(str(index) for index in indices if isinstance(index, int))])
            data = _lasting(data)
            for choice in data.get("choices") or ():
                late.update(_paths(choice) if choice.get("index") in ended else ())
                ended.update([choice.get("index")] if choice.get("finish_reason") else [])
        sums[key] = _merged(sums.get(key), data)
    return {"sums": sums, "order": list(sums), "late": sorted(late)}


def _lasting(value: Any) -> Any:
    """Return JSON without members that depend on time or on how a stream was cut."""
    if isinstance(value, dict):
        return {key: _lasting(one) for key, one in value.items() if key not in _OF_PIECES}
    return list(map(_lasting, value)) if isinstance(value, list) else value


def _merged(old: Any, new: Any, key: str = "") -> Any:
    if new is None or old is None:
        return old if new is None else new
    if isinstance(old, dict) and isinstance(new, dict):
        return {
            name: _merged(old.get(name), new.get(name), name)
            for name in (*old, *(new.keys() - old))
        }
    if isinstance(old, list) and isinstance(new, list):
        return _merged_lists(old, new)
    if isinstance(old, str) and isinstance(new, str) and key in _CONCATENATED:
        return old + new
    return new


def _merged_lists(old: list[Any], new: list[Any]) -> list[Any]:
    if not all(isinstance(one, dict) and "index" in one for one in (*old, *new)):
        return old + new
    by_index = {one["index"]: one for one in old}
    for one in new:
        by_index[one["index"]] = _merged(by_index.get(one["index"]), one)
    return [by_index[index] for index in sorted(by_index)]


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each value that says something."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _paths(member, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for member in value:
            yield from _paths(member, path)
    elif value not in (None, ""):
        yield path
