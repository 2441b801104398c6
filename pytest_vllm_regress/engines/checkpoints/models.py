"""The families of forged models: what ``models.toml`` says of their configuration, weights, documents and tokenizers."""

from __future__ import annotations

import functools
import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Weights = Iterator[tuple[str, tuple[int, ...]]]
"""Tensor names and shapes."""


@functools.cache
def families() -> dict[str, Any]:
    """Return the content of ``models.toml``, whose head explains its form."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def filled(template: Any, values: Mapping[str, Any], ids: Mapping[str, int]) -> Any:
    """Return a template with ``values`` in place of their names, and ``ids`` in place of tokens."""
    if isinstance(template, dict):
        return {name: filled(part, values, ids) for name, part in template.items()}
    if isinstance(template, list):
        return [filled(part, values, ids) for part in template]
    if isinstance(template, str) and template[:1] == "$":
        return _value(template[1:], values)
    if isinstance(template, str) and template[:1] == "@":
        return ids[template[1:]]
    return template


def family(kind: str, part: str) -> dict[str, Any]:
    """Return the table ``part`` (config, documents) of a kind, over that of its base."""
    own = families()[kind]
    inherited = family(own["base"], part) if "base" in own else {}
    return merged(inherited, own.get(part, {}))


def merged(inherited: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table over the one that it is based on."""
    return {name: part for name, part in {**inherited, **own}.items() if part != "$absent"}


def weights(kind: str, sizes: Mapping[str, Any]) -> Weights:
    """Yield the weights of a kind, in the order in which they are drawn."""
    own = families()[kind]
    return _listed(own["weights"], sizes) if "weights" in own else weights(own["base"], sizes)


def _listed(rows: list[Any], sizes: Mapping[str, Any]) -> Weights:
    for row in rows:
        if isinstance(row, list):
            name, *shape = row
            yield name, tuple(_value(str(length), sizes) for length in shape)
            continue
        for number in range(sizes[row["each"]] if "each" in row else 1):
            prefix = row.get("at", "").replace("#", str(number))
            for part, size in _listed(families()["weights"][row["of"]], sizes):
                if "without" not in row or row["without"] not in part:
                    yield prefix + part, size


def _value(text: str, values: Mapping[str, Any]) -> Any:
    if text in values:
        return values[text]
    product, _, divisor = text.partition("/")
    factors = (int(word) if word.isdecimal() else values[word] for word in product.split("*"))
    return math.prod(factors) // int(divisor or 1)


def padded_size(count: int) -> int:
    """Return the vocabulary size for ``count`` tokens, padded like real ones so that
    tensor-parallel ranks can divide it."""
    return -(-count // 64) * 64


def json_bytes(content: Any) -> bytes:
    """Return a JSON document in the format of all files of a checkpoint."""
    return json.dumps(content, ensure_ascii=False, indent=1).encode()
