"""Pooling requests to a server: vectors, classes, scores and rankings of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from .transport import Transport

_DIRECTORY = {"": "", "v1": "/v1", "v2": "/v2"}
_SCORING = ("score", "embed")
_TASKS = {
    "/v1/embeddings": ("embed",),
    "/classify": ("classify",),
    "/pooling": ("token_embed", "embed", "classify"),
}


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A ranked document: its ``index`` in the request, its ``score`` and its ``text``."""

    index: int
    score: float
    text: str


class PoolingRequests(Transport):
    """Requests to a server with a pooling task. Errors as in ``chat``, and ``Unsupported`` if this
    vLLM does not have the address, or only for other
    tasks."""

    def embed(
        self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Any
    ) -> list[list[float]]:
        """Return the vector of each text, in order. For servers with ``task="embed"``."""
        return [
            list(result["embedding"])
            for result in self._pooled("/v1/embeddings", texts, timeout, options)
        ]

    def classify(
        self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Any
    ) -> list[list[float]]:
        """Return the probability of each class for each text.

        For servers with ``task="classify"``.
        """
        return [
            list(result["probs"]) for result in self._pooled("/classify", texts, timeout, options)
        ]

    def pool(
        self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Any
    ) -> list[Any]:
        """Return the result of /pooling for each text: one vector per token with
        ``task="token_embed"``, otherwise that of the server's task."""
        return [result["data"] for result in self._pooled("/pooling", texts, timeout, options)]

    def score(
        self, text: str, others: Sequence[str], *, timeout: float | None = None, **options: Any
    ) -> list[float]:
        """Return the similarity of ``text`` and each of ``others``, in order.

        For servers with ``task="embed"`` or ``task="score"``.
        """
        body = {"text_1": text, "text_2": list(others), **options}
        data = self._request_json("/score", body, timeout, tasks=_SCORING)["data"]
        return [float(result["score"]) for result in _in_order(data)]

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
        """Return the documents, best first, all or ``top_n`` of them. For servers with
        ``task="score"`` or ``task="embed"``.

        ``api``: use /rerank (Jina's), /v1/rerank or /v2/rerank (Cohere's).
        """
        body = {
            "query": query,
            "documents": list(documents),
            **({} if top_n is None else {"top_n": top_n}),
            **options,
        }
        results = self._request_json(f"{_DIRECTORY[api]}/rerank", body, timeout, tasks=_SCORING)[
            "results"
        ]
        return [
            Ranked(
                int(result["index"]),
                float(result["relevance_score"]),
                str(result["document"]["text"]),
            )
            for result in results
        ]

    def _pooled(
        self, path: str, texts: str | Sequence[str], timeout: float | None, options: dict[str, Any]
    ) -> list[dict[str, Any]]:
        inputs = [texts] if isinstance(texts, str) else list(texts)
        return _in_order(
            self._request_json(path, {"input": inputs, **options}, timeout, tasks=_TASKS[path])[
                "data"
            ]
        )


def _in_order(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(data, key=lambda result: int(result["index"]))
