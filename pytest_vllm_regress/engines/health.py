"""A server that gives no answer: is it dead, stuck or slow? Told from /health and from the engine's own counters, not from the silence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import httpx

from .http.metrics import Metrics

LOOK_S = 5.0
"""One whose engine core floods it answers later than in 2 s on two busy cores, and is not dead."""
WINDOW_S = 1.5
DEAD, STUCK, SLOW, IDLE = "dead", "stuck", "slow", "idle"
# V0 and V1 have the same names for these (https://docs.vllm.ai, "Production Metrics"); sums are over engines.
_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
_REQUESTS = ("vllm:num_requests_running", "vllm:num_requests_waiting")

Get = Callable[[str, float], httpx.Response]


@dataclasses.dataclass(frozen=True)
class Health:
    """``state``: dead (the API server does not answer), stuck (healthy, and nothing moves), slow (tokens come) or idle (nothing to do)."""

    state: str
    text: str


@dataclasses.dataclass(frozen=True)
class Counters:
    """Tokens so far, and requests that run or wait."""

    tokens: float
    requests: float

    @classmethod
    def parse(cls, metrics: str) -> Counters | None:
        """From the text of /metrics; None when the server does not count."""
        try:
            counted = Metrics.parse(metrics)
        except ValueError:
            return None
        tokens, requests = (
            [value for name in names for value in counted.of(name).values()] for names in (_TOKENS, _REQUESTS)
        )
        return cls(sum(tokens), sum(requests)) if requests else None


def look(get: Get, pause: Callable[[float], None]) -> Health:
    """Ask /health, and /metrics twice with ``pause`` between; a few seconds, and ``LOOK_S`` for an answer that does not come.

    ``get(path, seconds)`` raises ``httpx.TransportError``.
    """
    try:
        health = get("/health", LOOK_S)
        if not health.is_success:
            return Health(DEAD, f"the server says it is not healthy (/health: HTTP {health.status_code})")
        before = Counters.parse(get("/metrics", LOOK_S).text)
        pause(WINDOW_S)
        after = Counters.parse(get("/metrics", LOOK_S).text)
    except httpx.TransportError as error:
        return Health(DEAD, f"the API server does not answer /health ({type(error).__name__})")
    if before is None or after is None:
        return Health(
            STUCK,
            "the server says it is healthy (/health: HTTP 200); it has no counters that would tell whether anything moves",
        )
    moved = after.tokens - before.tokens
    if moved > 0:
        return Health(
            SLOW, f"slow, not stuck: {moved:g} tokens in {WINDOW_S:g} s, {after.requests:g} requests run or wait"
        )
    if after.requests:
        return Health(
            STUCK,
            f"healthy but not progressing: /health says 200, {after.requests:g} requests run or wait, no token in {WINDOW_S:g} s",
        )
    return Health(IDLE, "healthy and idle: the engine knows of no request, so it was lost on the way")
