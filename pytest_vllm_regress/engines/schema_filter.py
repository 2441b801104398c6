"""Schemas in requests: seen, and left out where a smaller request is to be tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

KEYS = (
    "structured_outputs",
    "guided_decoding",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "response_format",
)
"""What sampling parameters and HTTP bodies call a structured output, in any version of vLLM."""


@dataclasses.dataclass
class SchemaFilter:
    """``seen``: a request had a schema. ``drop``: send it without."""

    drop: bool = False
    seen: bool = False

    def apply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The sampling parameters or HTTP body to send."""
        self.seen |= any(key in request for key in KEYS)
        return {key: value for key, value in request.items() if not (self.drop and key in KEYS)}
