"""Parallel sizes, executors and tokenizer pools with each front-end: the engine starts, answers,
and leaves nothing behind."""

from __future__ import annotations

import psutil
import pytest

from pytest_vllm_regress import AsyncEngine, Engine, RequestOutput, Server
from pytest_vllm_regress.engines.processes.child_processes import Leftover

pytestmark = pytest.mark.vllm_engine(generation=["V0", "V1"], fresh=True)


PROMPTS = ["number one", "number two", "number three", "number four"]
SAMPLING = {"max_tokens": 8, "ignore_eos": True, "n": 2}


def use(engine: Engine) -> None:
    """Generate two results for each of four prompts, then stop the engine."""
    check_and_stop(engine, engine.generate(PROMPTS, SAMPLING, output_kind="final_only"))


def use_async(engine: AsyncEngine) -> None:
    check_and_stop(
        engine,
        [stream[-1] for stream in engine.generate(PROMPTS, SAMPLING, output_kind="final_only")],
    )


def check_and_stop(engine: Engine | AsyncEngine, answers: list[RequestOutput]) -> None:
    assert [[len(output["token_ids"]) for output in answer["outputs"]] for answer in answers] == [
        [8, 8]
    ] * 4
    leftovers = engine.stop()
    # V1's engine-core process ends without Ray's own shutdown; the harness removes what Ray leaves.
    if engine.spec.executor != "ray":
        assert_none(leftovers)


def use_server(server: Server) -> None:
    for _ in range(4):
        assert (
            len(server.chat([{"role": "user", "content": "Hello"}], n=2, max_tokens=8)["choices"])
            == 2
        )
    assert_none(server.stop())


def assert_none(leftovers: tuple[Leftover, ...]) -> None:
    assert not leftovers, f"left behind: {'; '.join(map(str, leftovers))}"


def assert_two_nodes(engine: Engine | AsyncEngine | Server) -> None:
    """Assert that vLLM's workers are actors of exactly two raylets."""
    workers = [
        process
        for process in engine.child.processes()
        if "RayWorkerWrapper" in " ".join(process.cmdline())
    ]
    assert [psutil.Process(raylet).name() for raylet in {worker.ppid() for worker in workers}] == [
        "raylet",
        "raylet",
    ]


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
    assert_two_nodes(vllm_engine)
    use(vllm_engine)


@pytest.mark.vllm_engine(front="async", pp=2, executor="ray-2-nodes")
def test_async_pp2_on_two_nodes(vllm_engine: AsyncEngine) -> None:
    assert_two_nodes(vllm_engine)
    use_async(vllm_engine)


@pytest.mark.vllm_engine(front="serve", tp=2, executor="ray-2-nodes")
def test_serve_tp2_on_two_nodes(vllm_server: Server) -> None:
    assert_two_nodes(vllm_server)
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
