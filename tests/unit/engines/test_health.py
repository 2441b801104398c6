"""Whether a server is dead, stuck, slow or idle, from its responses."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from pytest_vllm_regress.engines.http.health import MAX_HEALTH_S, check_health, count

METRICS = """# HELP vllm:num_requests_running Number of requests.
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_running{{engine="1",model_name="m"}} 0.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} 1.0
vllm:prompt_tokens_total{{engine="0",model_name="m"}} 5.0
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
vllm:generation_tokens_created{{engine="0"}} 1.7e+09
"""


class StandIn:
    """Answers /health with a status and /metrics with one text after the other.

    Exceptions are raised.
    """

    def __init__(self, health: int | Exception, *metrics: str | Exception) -> None:
        self.health = health
        self.metrics: Iterator[str | Exception] = iter(metrics)
        self.paused: list[float] = []

    def __call__(self, path: str, seconds: float) -> httpx.Response:
        answer = self.health if path == "/health" else next(self.metrics)
        if isinstance(answer, Exception):
            raise answer
        return (
            httpx.Response(answer) if isinstance(answer, int) else httpx.Response(200, text=answer)
        )


def metrics(tokens: float, running: float = 1) -> str:
    return METRICS.format(tokens=tokens, running=running)


@pytest.mark.parametrize(
    ("stand_in", "state", "words"),
    [
        (
            StandIn(200, metrics(7), metrics(7)),
            "stuck",
            "healthy but not progressing: /health says 200, 2 requests run or wait, no token",
        ),
        (StandIn(200, metrics(7), metrics(9)), "slow", "slow, not stuck: 2 tokens"),
        (StandIn(200, *2 * [metrics(7, -1)]), "idle", "the engine knows of no request"),
        (StandIn(200, "", ""), "stuck", "no counters"),
        (StandIn(503), "dead", "HTTP 503"),
        (StandIn(httpx.ConnectError("refused")), "dead", "does not answer /health (ConnectError)"),
        (StandIn(200, metrics(7), httpx.ReadTimeout("late")), "dead", "ReadTimeout"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_responses_determine_the_state(stand_in: StandIn, state: str, words: str) -> None:
    health = check_health(stand_in, stand_in.paused.append)
    assert health.state == state
    assert words in health.text


def test_counters_are_summed_over_engines() -> None:
    assert count(metrics(7)) == (12, 2)
    assert count("# nothing") is None


@pytest.mark.parametrize(("starved_share", "state"), [(0.0, "dead"), (0.5, "dead"), (0.9, "stuck")])
def test_time_in_which_the_server_waits_for_a_processor_does_not_count(
    starved_share: float, state: str
) -> None:
    """The server answers after 12 s.

    For ``starved_share`` of this time it waits for a processor.
    """
    asked: list[float] = []

    def get(path: str, seconds: float) -> httpx.Response:
        asked.append(seconds)
        if sum(asked) < 12:
            raise httpx.ReadTimeout("late")
        return httpx.Response(200, text="")

    health = check_health(get, lambda seconds: None, lambda: sum(asked) * starved_share)
    assert health.state == state


def test_a_server_that_never_gets_a_processor_is_given_up() -> None:
    asked: list[float] = []

    def get(path: str, seconds: float) -> httpx.Response:
        asked.append(seconds)
        raise httpx.ReadTimeout("late")

    assert check_health(get, lambda seconds: None, lambda: sum(asked)).state == "dead"
    assert sum(asked) == MAX_HEALTH_S
