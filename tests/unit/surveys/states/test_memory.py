"""Growth of memory per release: when a second run is made, what its requests must have got, and the
page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from pytest_vllm_regress.errors import NotAtWork
from pytest_vllm_regress.surveys.states import growth
from pytest_vllm_regress.surveys.states.growth import (
    KINDS,
    Growth,
    MemoryRow,
    MemoryRun,
    Reading,
    Slope,
)
from pytest_vllm_regress.surveys.states.measure import ReleaseStates
from pytest_vllm_regress.util import codec
from tools.states_pages import page as states_page

GROWS, STEADY, LITTLE = Slope(4096, 4000, 4200), Slope(10, -30, 50), Slope(40, 20, 60)


class FakeServer:
    """Answers requests by a handler instead of a socket."""

    model = "tiny"

    def __init__(self, handler: Callable[[httpx.Request], httpx.Response]) -> None:
        self.client = httpx.Client(base_url="http://server", transport=httpx.MockTransport(handler))

    @contextmanager
    def route_through(self, transport: httpx.BaseTransport) -> Iterator[None]:
        yield


def refusing(request: httpx.Request) -> httpx.Response:
    return httpx.Response(400, text="no such field")


def chat(content: str) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(
        200, json={"choices": [{"message": {"content": content}}]}
    )


def chunks(*lines: str) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(200, text="".join(f"data: {line}\n\n" for line in lines))


def send(kind: str, handler: Callable[[httpx.Request], httpx.Response]) -> None:
    server: Any = FakeServer(handler)
    KINDS[kind](server, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_status_is_no_measurement(kind: str) -> None:
    with pytest.raises(NotAtWork, match="HTTP 400: no such field"):
        send(kind, refusing)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("streamed chat", chunks("{}", "[DONE]"), chunks("{}")),
        ("structured output", chat(' {"na'), chat("Hello")),
        ("aborted stream", chunks("{}"), chunks("[DONE]")),
    ],
)
def test_an_answer_of_another_kind_is_no_measurement(
    kind: str,
    right: Callable[[httpx.Request], httpx.Response],
    wrong: Callable[[httpx.Request], httpx.Response],
) -> None:
    send(kind, right)
    with pytest.raises(NotAtWork):
        send(kind, wrong)


def test_every_prompt_is_another_one() -> None:
    prompts: list[Any] = []

    def record(request: httpx.Request) -> httpx.Response:
        prompts.append(json.loads(request.content)["prompt"])
        return httpx.Response(200, json={})

    server: Any = FakeServer(record)
    for number in range(3):
        KINDS["completion"](server, number)
    assert len(set(prompts)) == 3


@pytest.mark.parametrize(
    ("first", "second", "growing"),
    [
        (GROWS, GROWS, {"core"}),
        (GROWS, STEADY, set()),
        (STEADY, None, set()),
        (LITTLE, None, set()),
    ],
    ids=["twice", "once", "never", "too little"],
)
def test_growth_is_claimed_only_if_a_second_run_shows_it(
    monkeypatch: pytest.MonkeyPatch, first: Slope, second: Slope | None, growing: set[str]
) -> None:
    slopes = iter([first, second])

    def measure(server: object, send: object, **numbers: int) -> dict[str, Growth]:
        slope = next(slopes)
        assert slope is not None, "a second run was made"
        return {"core": Growth("core", slope, slope, (Reading(0, 1, 1),))}

    monkeypatch.setattr(growth, "measure_growth", measure)
    server: Any = FakeServer(refusing)
    row = growth.observe(server, "completion")
    assert row.growing == growing
    assert len(row.runs) == 1 + (second is not None)


def test_the_page_names_what_grows_and_shows_both_runs() -> None:
    both = {"server": STEADY, "core": GROWS}
    rows = {
        "completion": MemoryRow((MemoryRun(both), MemoryRun(both))),
        "streamed chat": MemoryRow((MemoryRun({"server": STEADY, "core": STEADY}),)),
        "structured output": MemoryRow(absent="vLLM 0.33.0 has no such field"),
    }
    releases = [ReleaseStates("0.33.0", growth=rows), ReleaseStates("0.9.2")]
    page = states_page("growth", releases).splitlines()
    assert "| 0.33.0 | core grows | no | n/a | not run |" in page
    assert "| 0.33.0 | core | 4096, 4000 to 4200 | 4096, 4000 to 4200 | yes |" in page
    assert "| 0.33.0 | server | ` 10, -30 to 50 ` | ` 10, -30 to 50 ` | no |" in page
    assert "- n/a for 0.33.0: this vLLM has no such field" in page
    assert not [line for line in page if "0.9.2" in line]


def test_slopes_are_recorded_and_the_verdict_is_not() -> None:
    entry = codec.encode(
        ReleaseStates("0.33.0", growth={"completion": MemoryRow((MemoryRun({"core": GROWS}),))})
    )
    (run,) = entry["growth"]["completion"]["runs"]
    assert run == {"slopes": {"core": {"bytes_per_request": 4096, "low": 4000, "high": 4200}}}
