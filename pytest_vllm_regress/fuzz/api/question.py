"""A question to a server: one request, with the body as exact text."""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

from .servers import ADAPTER

JSON, FORM = "json", "form"


@dataclasses.dataclass(frozen=True)
class Question:
    """A request.

    Attributes:
        server: kind of server (``SERVERS``).
        path: with the query.
        route: the path as the server's description has it.
        body: text of the body; None for none. Of a form it is a JSON object of its fields.
            ``{adapter}`` stands for the path of an adapter.
        content: how the body is sent, ``json`` or ``form``.
    """

    server: str
    method: str
    path: str
    route: str
    body: str | None = None
    content: str = JSON

    def value(self) -> Any:
        """Return the body as a value. Raises ``ValueError`` if it is not JSON, or too deep."""
        try:
            return json.loads(self.body or "null")
        except RecursionError:
            raise ValueError("too deep") from None

    def with_value(self, value: Any) -> Question:
        """Return the same request with another body."""
        return dataclasses.replace(self, body=body_text(value))

    def streams(self) -> bool:
        """Return whether the request asks for a stream."""
        try:
            value = self.value()
        except ValueError:
            return False
        return isinstance(value, dict) and value.get("stream") is True

    def curl(self) -> str:
        """Return the request as a command, for a server on port 8000."""
        words = ["curl", "-sS", f"http://127.0.0.1:8000{self.path}"]
        if self.method != "POST" or self.body is None:
            words += ["-X", self.method]
        if self.content == FORM:
            fields = self.value()
            for name, field in fields.items() if isinstance(fields, dict) else ():
                words += [
                    "-F",
                    f"{name}=@{field}" if name == "file" else f"{name}={form_text(field)}",
                ]
        elif self.body is not None:
            words += ["-H", "Content-Type: application/json", "-d", self.body]
        return shlex.join(words)


def body_text(value: Any) -> str:
    """Return a value as JSON in ASCII, with NaN and Infinity as Python writes them."""
    return json.dumps(value)


def form_text(value: Any) -> str:
    """Return the text of a form's field."""
    return value if isinstance(value, str) else json.dumps(value)


def sent_text(question: Question, adapter: str) -> str | None:
    """Return the body as it is sent, with the path of an adapter in place of ``ADAPTER``."""
    return None if question.body is None else question.body.replace(ADAPTER, adapter)
