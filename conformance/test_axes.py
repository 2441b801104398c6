"""Parallel sizes, executors and tokenizer pools, through each front-end: it starts, answers, and its stop leaves nothing."""

from __future__ import annotations

import psutil
import pytest

from pytest_vllm_regress import AsyncEngine, Engine, RequestOutput, Server
from pytest_vllm_regress.processes.leftover import Leftover

pytestmark = pytest.mark.vllm_engine(generation=["V0", "V1"], fresh=True)


PROMPTS = ["number one", "number two", "number three", "number four"]
SAMPLING = {"max_tokens": 8, "ignore_eos": True, "n": 2}


def use(engine: Engine) -> None:
    """Four prompts of two results each, then the end."""
    end(engine, engine.generate(PROMPTS, SAMPLING, output_kind="final_only"))


def use_async(engine: AsyncEngine) -> None:
    end(engine, [stream[-1] for stream in engine.generate(PROMPTS, SAMPLING, output_kind="final_only")])


def end(engine: Engine | AsyncEngine, last: list[RequestOutput]) -> None:
    assert [[len(each["token_ids"]) for each in answer["outputs"]] for answer in last] == [[8, 8]] * 4
    left = engine.stop()
    if (
        engine.spec.executor != "ray"
    ):  # V1's engine-core process ends without Ray's own shutdown; the harness removes what Ray leaves
        leaves_nothing(left)


def use_server(server: Server) -> None:
    for _ in range(4):
        assert len(server.chat([{"role": "user", "content": "Hello"}], n=2, max_tokens=8)["choices"]) == 2
    leaves_nothing(server.stop())


def leaves_nothing(left: tuple[Leftover, ...]) -> None:
    assert not left, f"left behind: {'; '.join(map(str, left))}"


def on_two_nodes(engine: Engine | AsyncEngine | Server) -> None:
    """vLLM's workers are actors of two raylets, and no third."""
    workers = [each for each in engine.child.processes() if "RayWorkerWrapper" in " ".join(each.cmdline())]
    assert [psutil.Process(raylet).name() for raylet in {each.ppid() for each in workers}] == ["raylet", "raylet"]


@pytest.mark.vllm_engine(executor=["uni", "mp"])
def test_offline(vllm_engine: Engine) -> None:
    use(vllm_engine)


@pytest.mark.vllm_engine(tp=2, executor=["mp", "ray"])
def test_offline_tp2(vllm_engine: Engine) -> None:
    use(vllm_engine)


@pytest.mark.vllm_engine(pp=2, executor="mp")
def test_offline_pp2(vllm_engine: Engine) -> None:
    use(vllm_engine)


@pytest.mark.vllm_engine(front="async", tp=2, executor="mp")
def test_async_tp2(vllm_engine: AsyncEngine) -> None:
    use_async(vllm_engine)


@pytest.mark.vllm_engine(front="async", pp=2, executor=["mp", "ray"])
def test_async_pp2(vllm_engine: AsyncEngine) -> None:
    use_async(vllm_engine)


@pytest.mark.vllm_engine(tp=2, executor="ray-2-nodes")
def test_offline_tp2_on_two_nodes(vllm_engine: Engine) -> None:
    on_two_nodes(vllm_engine)
    use(vllm_engine)


@pytest.mark.vllm_engine(front="async", pp=2, executor="ray-2-nodes")
def test_async_pp2_on_two_nodes(vllm_engine: AsyncEngine) -> None:
    on_two_nodes(vllm_engine)
    use_async(vllm_engine)


@pytest.mark.vllm_engine(front="serve", tp=2, executor="ray-2-nodes")
def test_serve_tp2_on_two_nodes(vllm_server: Server) -> None:
    on_two_nodes(vllm_server)
    use_server(vllm_server)


@pytest.mark.vllm_engine(front="async", dp=2)
def test_async_dp2(vllm_engine: AsyncEngine) -> None:
    use_async(vllm_engine)


@pytest.mark.vllm_engine(front="serve", tp=2, executor="mp")
def test_serve_tp2(vllm_server: Server) -> None:
    use_server(vllm_server)


@pytest.mark.vllm_engine(front="serve", pp=2, executor="mp")
def test_serve_pp2(vllm_server: Server) -> None:
    use_server(vllm_server)


@pytest.mark.vllm_engine(front="serve", dp=2)
def test_serve_dp2(vllm_server: Server) -> None:
    use_server(vllm_server)


@pytest.mark.vllm_engine(pool=2)
def test_offline_tokenizer_pool(vllm_engine: Engine) -> None:
    use(vllm_engine)


@pytest.mark.vllm_engine(front="async", pool=2)
def test_async_tokenizer_pool(vllm_engine: AsyncEngine) -> None:
    use_async(vllm_engine)
