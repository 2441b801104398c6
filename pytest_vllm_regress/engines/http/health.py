"""What a server says of itself: its metrics, in the text format of Prometheus
(https://prometheus.io/docs/instrumenting/exposition_formats/), and from them and /health whether one
that does not answer is dead, stuck or slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

HEALTH_TIMEOUT_S = 5.0
"""Seconds to wait for an answer: on two busy cores, a server whose engine core floods it with
results may need more than 2 s."""
MAX_HEALTH_S = 30.0
"""The same, including the time in which the server waits for a processor."""
_WORTH_ASKING_S = 0.2
WINDOW_S = 1.5
DEAD, STUCK, SLOW, IDLE = "dead", "stuck", "slow", "idle"
# V0 and V1 use the same names (https://docs.vllm.ai, "Production Metrics"). Values are summed over
# engines.
_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
_REQUESTS = ("vllm:num_requests_running", "vllm:num_requests_waiting")

Get = Callable[[str, float], httpx.Response]
Labels = tuple[tuple[str, str], ...]
"""Names and values of labels, sorted."""


@dataclass(frozen=True)
class Metrics:
    """``samples``: values by name and labels, for example ``("vllm:num_requests_running",
    (("engine", "0"), ...))``."""

    samples: Mapping[tuple[str, Labels], float] = field(hash=False)

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """Parse the text of /metrics. Names of counters end with ``_total``, as in the format.

        Raises ``ValueError`` for another format.
        """
        from prometheus_client.parser import text_string_to_metric_families

        try:
            samples = [
                sample
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            ]
        except ValueError as error:
            raise ValueError(f"not Prometheus' text format: {str(error) or text[:200]!r}") from None
        return cls(
            {
                (sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for sample in samples
            }
        )

    def of(self, name: str, **labels: str) -> dict[Labels, float]:
        """Return the samples of this name that have these labels."""
        required = set(labels.items())
        return {
            sample_labels: value
            for (sample_name, sample_labels), value in self.samples.items()
            if sample_name == name and required.issubset(set(sample_labels))
        }

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of these samples, for example over the engines of a server.

        Raises ``KeyError`` with similar names if there are none.
        """
        samples = self.of(name, **labels)
        if not samples:
            import difflib

            close = difflib.get_close_matches(
                name, {sample_name for sample_name, _ in self.samples}, n=3
            )
            metric = f"{name} with {labels}" if labels else name
            raise KeyError(
                f"the server counts no {metric}; close to it: {', '.join(close) or 'nothing'}"
            )
        return sum(samples.values())


@dataclass(frozen=True)
class Health:
    """``state``: dead (the API server does not answer), stuck (healthy, but no progress), slow
    (generating tokens) or idle (no requests)."""

    state: str
    text: str


def count(metrics: str) -> tuple[float, float] | None:
    """Return the tokens so far, and the requests that run or wait, from the text of /metrics; None
    if the server has no counters."""
    try:
        parsed = Metrics.parse(metrics)
    except ValueError:
        return None
    tokens, requests = (
        [value for name in names for value in parsed.of(name).values()]
        for names in (_TOKENS, _REQUESTS)
    )
    return (sum(tokens), sum(requests)) if requests else None


def check_health(
    get: Get, pause: Callable[[float], None], starved: Callable[[], float] = lambda: 0.0
) -> Health:
    """Request /health once and /metrics twice, with ``pause`` in between. Each request may take
    ``HEALTH_TIMEOUT_S``.

    ``get(path, seconds)`` raises ``httpx.TransportError``. ``starved()`` returns for how many
    seconds the server has waited for a processor so far.
    """
    try:
        health = _get_patiently(get, "/health", starved)
        if not health.is_success:
            return Health(
                DEAD, f"the server says it is not healthy (/health: HTTP {health.status_code})"
            )
        before = count(_get_patiently(get, "/metrics", starved).text)
        pause(WINDOW_S)
        after = count(_get_patiently(get, "/metrics", starved).text)
    except httpx.TransportError as error:
        return Health(DEAD, f"the API server does not answer /health ({type(error).__name__})")
    if before is None or after is None:
        return Health(
            STUCK,
            "the server says it is healthy (/health: HTTP 200); it has no counters, so progress cannot be measured",
        )
    moved, requests = after[0] - before[0], after[1]
    if moved > 0:
        return Health(
            SLOW,
            f"slow, not stuck: {moved:g} tokens in {WINDOW_S:g} s, {requests:g} requests run or wait",
        )
    if requests:
        return Health(
            STUCK,
            f"healthy but not progressing: /health says 200, {requests:g} requests run or wait, no token in {WINDOW_S:g} s",
        )
    return Health(
        IDLE, "healthy and idle: the engine knows of no request, so it was lost on the way"
    )


def _get_patiently(get: Get, path: str, starved: Callable[[], float]) -> httpx.Response:
    """Like ``get``, but after a timeout ask again for as long as the server had to wait for a
    processor."""
    seconds, total_s = HEALTH_TIMEOUT_S, 0.0
    while True:
        before = starved()
        try:
            return get(path, seconds)
        except httpx.ReadTimeout:
            total_s += seconds
            seconds = min(starved() - before, MAX_HEALTH_S - total_s)
            if seconds < _WORTH_ASKING_S:
                raise


def waited_for_processor(pid: int) -> float:
    """Return how many seconds the main thread of a process was ready to run but had no processor
    (schedstat in proc(5)); 0 if unknown."""
    try:
        return int(Path("/proc", str(pid), "schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
