"""A request to a server, with the body as exact text, and what came back for it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ...util.codec import Document, Meta, replace

JSON, FORM = "json", "form"
BUSY = "busy"
"""Failure of an answer that takes long because the engine generates all that was asked for, such as
thousands of results."""


class ApiRequest(Document, frozen=True, omit_defaults=False):
    """A request.

    Attributes:
        server: kind of server (``SERVERS``).
        path: with the query.
        route: the path as the server's description has it.
        body: text of the body; None for none. Of a form it is a JSON object of its fields.
            ``{adapter}`` stands for the path of an adapter.
        content: how the body is sent.
    """

    server: Literal["text", "vision", "embed", "classify", "score", "speech"]
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: Annotated[str, Meta(pattern="^/", max_length=5000)]
    route: Annotated[str, Meta(pattern="^/", max_length=300)]
    body: Annotated[str, Meta(max_length=200000)] | None = None
    content: Literal["json", "form"] = "json"

    @property
    def operation(self) -> str:
        """Method and route."""
        return f"{self.method} {self.route}"

    def value(self) -> Any:
        """Return the body as a value. Raises ``ValueError`` if it is not JSON, or too deep."""
        return parsed(self.body or "null")

    def with_body(self, body: str) -> ApiRequest:
        """Return the same request with another body."""
        return replace(self, body=body)

    def curl(self) -> str:
        """Return the request as a command, for a server on port 8000."""
        words = ["curl", "-sS", f"http://127.0.0.1:8000{self.path}"]
        if self.method != "POST" or self.body is None:
            words += ["-X", self.method]
        if self.content == FORM:
            fields = self.value()
            for name, field in fields.items() if isinstance(fields, dict) else ():
                text = f"@{field}" if name == "file" else form_text(field)
                words += ["-F", f"{name}={text}"]
        elif self.body is not None:
            words += ["-H", "Content-Type: application/json", "-d", self.body]
        return shlex.join(words)


@dataclass(frozen=True)
class ApiReply:
    """An answer, or why there is none.

    Attributes:
        status: None without an answer.
        text: of the body, as far as it came.
        ended: whether the body came to its end.
        failure: why there is no answer, or no end of it: ``time``, ``BUSY``, or the error of the
            connection.
        engine: what is wrong with the engine after the request; empty if it works.
        held: containers of the engine that keep what belonged to requests that have ended.
        log: what the server's processes logged, if anything is wrong with the answer; masked.
    """

    status: int | None = None
    text: str = ""
    content_type: str = ""
    ended: bool = True
    failure: str = ""
    engine: str = ""
    held: tuple[str, ...] = ()
    log: str = ""

    @property
    def is_stream(self) -> bool:
        return "event-stream" in self.content_type

    def value(self) -> Any:
        """Return the body as JSON. Raises ``ValueError`` if it is none."""
        return parsed(self.text)

    def events(self) -> list[tuple[str, str]]:
        """Return the events of a stream: their names (empty without one) and data. A whole JSON
        answer counts as one event."""
        if not self.is_stream:
            return [("", self.text)] if "json" in self.content_type else []
        events, name = [], ""
        for line in self.text.splitlines():
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                events.append((name, line[5:].strip()))
                name = ""
        return events


def parsed(text: str) -> Any:
    """Return the JSON value. Raises ``ValueError``, also if it is too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("too deep") from None


def form_text(value: Any) -> str:
    """Return the text of a form's field."""
    return value if isinstance(value, str) else json.dumps(value)
