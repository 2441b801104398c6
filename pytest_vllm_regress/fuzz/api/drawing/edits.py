"""Changes of a body at a path, and its paths."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from .description import Path


def paths(value: Any, prefix: Path = ()) -> Iterator[Path]:
    """Yield the paths of everything inside a value, the outer ones first.

    Of a list only the first two items count.
    """
    children: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value[:2]))
    for name, _ in children:
        yield (*prefix, name)
    for name, child in children:
        yield from paths(child, (*prefix, name))


def with_field(body: Any, path: Path, value: Any) -> Any:
    """Return a copy with a field set.

    Objects and lists on the way there are made, in place of values of other types.
    """
    if not path:
        return copy.deepcopy(value)
    head, rest = path[0], path[1:]
    if isinstance(head, int):
        items = list(body) if isinstance(body, list) else []
        items += [None] * (head + 1 - len(items))
        items[head] = with_field(items[head], rest, value)
        return items
    fields = dict(body) if isinstance(body, dict) else {}
    fields[head] = with_field(fields.get(head), rest, value)
    return fields


def without_field(body: Any, path: Path) -> Any:
    """Return a copy without a field; the same value if it has none there."""
    if not path or not isinstance(body, (dict, list)):
        return body
    head, rest = path[0], path[1:]
    if isinstance(body, list):
        if not isinstance(head, int) or head >= len(body):
            return body
        return [
            *body[:head],
            *([without_field(body[head], rest)] if rest else []),
            *body[head + 1 :],
        ]
    if head not in body:
        return body
    if not rest:
        return {name: value for name, value in body.items() if name != head}
    return {**body, head: without_field(body[head], rest)}


def field_at(body: Any, path: Path) -> Any:
    """Return the value at a path. Raises ``LookupError`` or ``TypeError`` if there is none."""
    for name in path:
        body = body[name]
    return body
