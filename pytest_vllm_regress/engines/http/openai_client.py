"""OpenAI's own client for a server, where the package is installed beside the tests."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from .transport import Transport

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI


class OpenAIClients(Transport):
    """OpenAI clients with the server's address and key and the deadline of requests.

    They never retry, because a retry would hide the failure.
    """

    _blocking: OpenAI | None = None

    @property
    def openai(self) -> OpenAI:
        """``openai.OpenAI`` for this server, closed with it:
        ``server.openai.chat.completions.create(model=server.model, messages=...)``.

        Its requests have no dossiers, and its errors are openai's own. A script that could not be
        followed is reported at the next call of the server itself. Raises ``UsageError`` if the
        package openai is not installed.
        """
        if self._blocking is None:
            package = _package()
            self._blocking = package.OpenAI(
                **self._arguments(package.DefaultHttpxClient, self.listener.guard)
            )
        return self._blocking

    @property
    def async_openai(self) -> AsyncOpenAI:
        """A new ``openai.AsyncOpenAI`` for the event loop that uses it:

        ``async with server.async_openai as client``. Otherwise like ``openai``.
        """
        package = _package()
        client: AsyncOpenAI = package.AsyncOpenAI(
            **self._arguments(package.DefaultAsyncHttpxClient, self.listener.guard_async)
        )
        return client

    def _arguments(self, client: Any, guard: Any) -> dict[str, Any]:
        seconds = self._deadline("request", None).allowed_s
        http = client(trust_env=False, timeout=seconds, event_hooks={"request": [guard]})
        return {
            "base_url": self.base_url,
            "api_key": self.api_key,
            "timeout": seconds,
            "max_retries": 0,
            "http_client": http,
        }

    def _close_openai(self) -> None:
        """Close the client that ``openai`` returned."""
        if self._blocking is not None:
            self._blocking.close()
            self._blocking = None


def _package() -> Any:
    try:
        return importlib.import_module("openai")
    except ImportError:
        raise UsageError(
            "the package openai is not installed beside the tests: pip install 'pytest-vllm-regress[openai]'"
        ) from None
