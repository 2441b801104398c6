"""Structured output in requests: noticed, and removed when the harness tries a smaller request."""

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
"""Names of structured output in sampling parameters and HTTP bodies, in all versions of vLLM."""


@dataclasses.dataclass
class SchemaFilter:
    """``used``: a request had a schema. ``drop``: remove schemas from requests."""

    drop: bool = False
    used: bool = False

    def apply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sampling parameters or HTTP body to send."""
        self.used |= any(key in request for key in KEYS)
        return {key: value for key, value in request.items() if not (self.drop and key in KEYS)}
