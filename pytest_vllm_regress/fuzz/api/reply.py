"""What came back for a request, as a value."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

MAX_BODY = 2 << 20
BUSY = "busy"
"""Failure of an answer that takes long because the engine generates all that was asked for, such as
thousands of results."""


@dataclasses.dataclass(frozen=True)
class Reply:
    """An answer, or why there is none.

    Attributes:
        status: None without an answer.
        text: of the body, as far as it came, up to ``MAX_BYTES``.
        ended: whether the body came to its end.
        failure: why there is no answer, or no end of it: ``time``, ``BUSY``, or the error of the
            connection.
        engine: what is wrong with the engine after the request; empty if it works.
        log: what the server's processes logged, if anything is wrong with the answer; masked.
    """

    status: int | None = None
    text: str = ""
    content_type: str = ""
    ended: bool = True
    failure: str = ""
    engine: str = ""
    log: str = ""

    @property
    def is_stream(self) -> bool:
        return "event-stream" in self.content_type

    def value(self) -> Any:
        """Return the body as JSON. Raises ``ValueError`` if it is none."""
        try:
            return json.loads(self.text)
        except RecursionError:
            raise ValueError("too deep") from None

    def events(self) -> list[tuple[str, str]]:
        """Return the events of a stream: their names (empty without one) and data."""
        events, name = [], ""
        for line in self.text.splitlines():
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                events.append((name, line[5:].strip()))
                name = ""
        return events
