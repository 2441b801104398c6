"""A server's /metrics: samples by name and labels, and tokens by data-parallel rank."""

from __future__ import annotations

import math

import httpx
import pytest

from pytest_vllm_regress.engines.http.health import Metrics
from pytest_vllm_regress.errors import DeadlineExceeded
from pytest_vllm_regress.util.deadline import Deadline

from .test_server import unconnected

RANKS = """
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="1",model_name="m"} 12.0
vllm:generation_tokens_total{engine="0",model_name="m"} 4.0
vllm:generation_tokens_total{engine="1",model_name="adapter"} 3.0
"""
WITHOUT_RANKS = """
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{model_name="m"} 5.0
"""

TEXT = r"""
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="a \"b\", c\\d"} 5.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 2e+01
plain 1
odd_bucket{le="+Inf",} +Inf 1395066363000
nothing NaN
"""


def test_samples_by_name_and_labels() -> None:
    metrics = Metrics.parse(TEXT)
    assert metrics.of("vllm:prompt_tokens_total", engine="0") == {
        (("engine", "0"), ("model_name", 'a "b", c\\d')): 5.0,
    }
    assert metrics.total("vllm:prompt_tokens_total") == 25 and metrics.samples["plain", ()] == 1
    assert metrics.total("odd_bucket", le="+Inf") == math.inf and math.isnan(
        metrics.total("nothing")
    )


def test_a_missing_metric_is_an_error_and_not_zero() -> None:
    with pytest.raises(KeyError, match="close to it: vllm:prompt_tokens_total"):
        Metrics.parse(TEXT).total("vllm:prompt_tokens")
    with pytest.raises(KeyError, match=r"with \{'engine': '7'\}"):
        Metrics.parse(TEXT).total("vllm:prompt_tokens_total", engine="7")


@pytest.mark.parametrize("line", ["name{label=1} 2", "name", '<html lang="en">', 'name{a="b} 1'])
def test_other_formats_are_rejected(line: str) -> None:
    with pytest.raises(ValueError, match="Prometheus"):
        Metrics.parse(line)


def test_a_server_returns_its_metrics() -> None:
    server = unconnected(9)

    def respond(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/metrics"
        return httpx.Response(200, text=TEXT)

    server.client = httpx.Client(base_url=server.root_url, transport=httpx.MockTransport(respond))
    assert server.metrics().total("plain") == 1


@pytest.mark.parametrize(("rank", "header"), [(None, None), (0, "0"), (1, "1")])
def test_a_request_names_the_rank_that_it_asks_for(rank: int | None, header: str | None) -> None:
    seen = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("X-data-parallel-rank"))
        return httpx.Response(200)

    server = unconnected(9)
    server.client = httpx.Client(base_url=server.root_url, transport=httpx.MockTransport(respond))
    server.post("/v1/completions", {"prompt": "Hello"}, rank=rank)
    assert seen == [header]


@pytest.mark.parametrize(
    ("text", "tokens"), [(RANKS, {0: 4, 1: 15}), (WITHOUT_RANKS, {0: 5}), ("", {})]
)
def test_tokens_are_counted_for_each_rank(text: str, tokens: dict[int, int]) -> None:
    server = unconnected(9)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=text))
    server.client = httpx.Client(base_url=server.root_url, transport=transport)
    assert server.tokens_by_rank() == tokens


def test_counters_that_are_a_step_behind_are_waited_for() -> None:
    texts = ["", WITHOUT_RANKS, RANKS]
    server = unconnected(9)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=texts.pop(0)))
    server.client = httpx.Client(base_url=server.root_url, transport=transport)
    assert server.tokens_by_rank(at_least=19) == {0: 4, 1: 15}
    assert texts == []


def test_counters_that_stay_behind_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    server = unconnected(9, lambda phase, timeout: Deadline.after(phase, 5, lambda: now[0]))
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=WITHOUT_RANKS))
    server.client = httpx.Client(base_url=server.root_url, transport=transport)
    monkeypatch.setattr(server.child, "pause", lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(
        server.child.failures,
        "hung",
        lambda deadline, why: DeadlineExceeded(why, phase=deadline.phase),
        raising=False,
    )
    with pytest.raises(DeadlineExceeded, match=r"5 of 19 tokens .* within 5 s: \{0: 5\} by rank"):
        server.tokens_by_rank(at_least=19)
