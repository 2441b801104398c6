"""Pooling over HTTP: vectors, classes and scores of texts, and their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from .transport import Transport

_DIRECTORY = {"": "", "v1": "/v1", "v2": "/v2"}
_SCORING = ("score", "embed")
_TASKS = {"/v1/embeddings": ("embed",), "/classify": ("classify",), "/pooling": ("token_embed", "embed", "classify")}


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A document that was ranked: its ``index`` among those given, its ``score``, its ``text``."""

    index: int
    score: float
    text: str


class PoolingRequests(Transport):
    """What a server that pools is asked. Errors of every call: as of ``chat``, and ``Unsupported`` where this vLLM has no such address, or has it for
    servers of other tasks only."""

    def embed(self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Any) -> list[list[float]]:
        """The vector of each text, in their order; for servers with ``task="embed"``."""
        return [list(each["embedding"]) for each in self._each("/v1/embeddings", texts, timeout, options)]

    def classify(
        self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Any
    ) -> list[list[float]]:
        """The probability of each class for each text; for servers with ``task="classify"``."""
        return [list(each["probs"]) for each in self._each("/classify", texts, timeout, options)]

    def pool(self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Any) -> list[Any]:
        """What /pooling gives for each text: with ``task="token_embed"`` a vector for each token, else what the server's task is."""
        return [each["data"] for each in self._each("/pooling", texts, timeout, options)]

    def score(self, text: str, others: Sequence[str], *, timeout: float | None = None, **options: Any) -> list[float]:
        """How alike ``text`` and each of ``others`` are, in the order of those; for servers with ``task="embed"`` or ``task="score"``."""
        body = {"text_1": text, "text_2": list(others), **options}
        data = self._asked("/score", body, timeout, tasks=_SCORING)["data"]
        return [float(each["score"]) for each in _in_order(data)]

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        api: Literal["", "v1", "v2"] = "",
        timeout: float | None = None,
        **options: Any,
    ) -> list[Ranked]:
        """The documents, the best first, all or ``top_n`` of them; for servers with ``task="score"`` or ``task="embed"``.

        ``api``: whether /rerank (Jina's), /v1/rerank or /v2/rerank (Cohere's) is asked.
        """
        body = {"query": query, "documents": list(documents), **({} if top_n is None else {"top_n": top_n}), **options}
        results = self._asked(f"{_DIRECTORY[api]}/rerank", body, timeout, tasks=_SCORING)["results"]
        return [
            Ranked(int(each["index"]), float(each["relevance_score"]), str(each["document"]["text"]))
            for each in results
        ]

    def _each(
        self, path: str, texts: str | Sequence[str], timeout: float | None, options: dict[str, Any]
    ) -> list[dict[str, Any]]:
        several = [texts] if isinstance(texts, str) else list(texts)
        return _in_order(self._asked(path, {"input": several, **options}, timeout, tasks=_TASKS[path])["data"])


def _in_order(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(data, key=lambda each: int(each["index"]))
