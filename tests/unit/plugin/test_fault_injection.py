"""Impostors between a test and a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cases.proofs.impostors import Impostor, read_impostor_runs
from pytest_vllm_regress.plugin.fault_injection import FaultInjection, _Transport
from pytest_vllm_regress.plugin.impostor_runs import ImpostorRuns
from pytest_vllm_regress.plugin.leg import Leg
from tests.unit.plugin.conftest import MakeItem

CASE = Path(__file__).parents[3] / "cases" / "vllm-21443" / "case.toml"


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/detokenize", "tokens"),
        ("/v1/embeddings", "encoding_format"),
        ("/rerank", "truncate_prompt_tokens"),
        ("/inference/v1/generate", "token_ids"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
def test_the_wrong_argument_is_known_to_the_address(address: str, refused: str) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.read()))
        return httpx.Response(400, text=f"{refused}: 'many' is not a number")

    fault, response = ask_with_the_wrong_argument(address, answer)
    assert fault.injected and [body[refused] for body in bodies] == ["many"]
    assert response.text == f"{refused}: 'many' is not a number" and not fault.ignored


@pytest.mark.parametrize(
    "answer", [httpx.Response(200, json={"tokens": [1]}), httpx.Response(500, text="the failure")]
)
def test_an_address_that_ignores_the_wrong_argument_seems_to_refuse_it(
    answer: httpx.Response,
) -> None:
    fault, response = ask_with_the_wrong_argument("/tokenize", lambda request: answer)
    assert fault.injected and response.status_code == 400 and "unexpected argument" in response.text
    assert fault.ignored == ["POST /tokenize"]
    assert fault.replaced[0].startswith("POST /tokenize with max_tokens, ")


@pytest.mark.parametrize("ignored", [False, True])
def test_the_real_failure_behind_an_ignored_argument_does_not_disprove_a_case(
    make_item: MakeItem, tmp_path: Path, ignored: bool
) -> None:
    def failing(leg: Leg) -> Leg:
        assert leg.fault is not None
        leg.fault.injected = True
        if ignored and leg.fault.impostor is Impostor.WRONG_ARGUMENT:
            leg.fault.ignored.append("POST /tokenize")
        leg.error = AssertionError("expected 8, got 1")
        return leg

    item = make_item()
    ImpostorRuns(tmp_path / "runs").run(item, item.marked, failing)
    (file,) = (tmp_path / "runs").iterdir()
    runs = read_impostor_runs(file)
    assert all(run.flaw for run in runs)
    assert (Impostor.WRONG_ARGUMENT in {run.impostor for run in runs}) is not ignored


def test_a_server_that_ends_at_an_ignored_argument_has_the_real_failure() -> None:
    def break_off(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("Server disconnected without sending a response.")

    fault = FaultInjection(Impostor.WRONG_ARGUMENT, load_case(CASE), "")
    with pytest.raises(httpx.RemoteProtocolError):
        ask_with_the_wrong_argument("/tokenize", break_off, fault)
    assert not fault.injected


def ask_with_the_wrong_argument(
    address: str,
    answer: Callable[[httpx.Request], httpx.Response],
    fault: FaultInjection | None = None,
) -> tuple[FaultInjection, httpx.Response]:
    fault = fault or FaultInjection(Impostor.WRONG_ARGUMENT, load_case(CASE), "")
    transport = _Transport(fault, cast(Any, SimpleNamespace(child=None)))
    transport._real = cast(Any, httpx.MockTransport(answer))
    with httpx.Client(base_url="http://localhost", transport=transport) as client:
        return fault, client.post(address, json={"model": "m"})
