"""Immutable JSON values, so that a configuration can be the key of a dictionary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


class FrozenMapping(Mapping[str, Any]):
    """An immutable mapping of JSON values, sorted by key.

    Equality and hash follow the canonical JSON text, so that 1, 1.0 and True are different values.
    ``plain`` returns an ordinary copy. Raises ``TypeError`` for a value that JSON does not have.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        plain = {str(key): value for key, value in (values or {}).items()}
        self._values = {key: freeze(plain[key]) for key in sorted(plain)}
        self._canonical = json.dumps(self.plain(), sort_keys=True)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return (
            self._canonical
            == (other if isinstance(other, FrozenMapping) else FrozenMapping(other))._canonical
        )

    def __hash__(self) -> int:
        return hash(self._canonical)

    def __repr__(self) -> str:
        return repr(self.plain())

    def plain(self) -> dict[str, Any]:
        """Return a copy made of dictionaries and lists."""
        return {key: thaw(value) for key, value in self._values.items()}


def freeze(value: Any) -> Any:
    """Return ``value`` with its mappings and lists replaced by immutable ones."""
    if isinstance(value, Mapping):
        return value if isinstance(value, FrozenMapping) else FrozenMapping(value)
    return tuple(map(freeze, value)) if isinstance(value, (list, tuple)) else value


def thaw(value: Any) -> Any:
    """Return ``value`` with its immutable mappings and tuples replaced by dictionaries and lists."""
    if isinstance(value, FrozenMapping):
        return value.plain()
    return list(map(thaw, value)) if isinstance(value, tuple) else value
