"""OpenAI's own client for a server, where the package is installed beside the tests."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from .transport import Transport

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI


class OpenAIClients(Transport):
    """Clients that know address and key, give up at the request's deadline, and never ask twice: a retry would hide what is looked for."""

    _blocking: OpenAI | None = None

    @property
    def openai(self) -> OpenAI:
        """``openai.OpenAI`` for this server, closed with it: ``server.openai.chat.completions.create(model=server.model, messages=...)``.

        What it asks goes past dossiers, and its errors are openai's own; a script that could not be said shows at the next call of the server
        itself. Raises ``UsageError`` where the package openai is not installed.
        """
        if self._blocking is None:
            package = _package()
            self._blocking = package.OpenAI(**self._arguments(package.DefaultHttpxClient))
        return self._blocking

    @property
    def async_openai(self) -> AsyncOpenAI:
        """``openai.AsyncOpenAI``, a new one each time, for the event loop that uses it: ``async with server.async_openai as client``. Else as
        ``openai``."""
        package = _package()
        client: AsyncOpenAI = package.AsyncOpenAI(**self._arguments(package.DefaultAsyncHttpxClient))
        return client

    def _arguments(self, transport: Any) -> dict[str, Any]:
        seconds = self._deadline("request", None).allowed_s
        http = transport(trust_env=False, timeout=seconds)
        return {
            "base_url": self.base_url,
            "api_key": self.api_key,
            "timeout": seconds,
            "max_retries": 0,
            "http_client": http,
        }

    def _close_openai(self) -> None:
        """Close the connections of the clients that were handed out."""
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
