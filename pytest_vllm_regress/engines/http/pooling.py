"""Pooling over HTTP: vectors and scores of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .transport import Transport


class PoolingRequests(Transport):
    """What a server with ``task="embed"`` is asked."""

    def embed(self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Any) -> list[list[float]]:
        """The vector of each text, in their order; for servers with ``task="embed"``. Errors as of ``chat``."""
        several = [texts] if isinstance(texts, str) else list(texts)
        data = self._asked("/v1/embeddings", {"input": several, **options}, timeout)["data"]
        return [list(each["embedding"]) for each in sorted(data, key=lambda each: int(each["index"]))]

    def score(self, text: str, others: Sequence[str], *, timeout: float | None = None, **options: Any) -> list[float]:
        """How alike ``text`` and each of ``others`` are, in the order of those; for servers with ``task="embed"``. Errors as of ``chat``."""
        data = self._asked("/score", {"text_1": text, "text_2": list(others), **options}, timeout)["data"]
        return [float(each["score"]) for each in sorted(data, key=lambda each: int(each["index"]))]
