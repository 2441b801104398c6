"""Data from which questions are drawn: the JSON files in ``data/fuzz``."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from ..util.paths import DATA


@functools.cache
def drawn_data(name: str) -> Mapping[str, Any]:
    """Return the content of a file: lists of texts and values by what they are for."""
    text = (DATA / "fuzz" / f"{name}.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
