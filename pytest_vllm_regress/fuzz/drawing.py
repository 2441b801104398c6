"""Questions drawn from a seed, and the data of which they consist."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from hypothesis.strategies import SearchStrategy

from ..schemas.drawing import draw_all
from ..util.codec import encode
from ..util.paths import DATA


@functools.cache
def drawn_data(name: str) -> Mapping[str, Any]:
    """Return the content of a file in ``data/fuzz``: lists of texts and values by what they are
    for."""
    text = (DATA / "fuzz" / f"{name}.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def identity(question: object) -> str:
    """Return a text that two questions share only if they are equal."""
    return json.dumps(encode(question))


@functools.lru_cache(maxsize=8)
def drawn(strategy: SearchStrategy[Any], count: int, seed: int) -> list[Any]:
    """Return the distinct questions among ``count`` drawn ones."""
    distinct: dict[str, Any] = {}
    for question in draw_all(strategy, count, seed):
        distinct.setdefault(identity(question), question)
    return list(distinct.values())
