"""vllm#16140: a tokenizer pool must start or fail, but never hang, whichever Ray its workers find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_vllm_regress import EngineSpec, Probe, Server

# The pool is older, but before 0.7 the probe cannot build it without a GPU.
pytestmark = [pytest.mark.vllm_case("vllm-16140"), pytest.mark.vllm_requires(vllm=">=0.7")]

clean = pytest.mark.vllm_case("vllm-16140", variant="clean")
no_pool = pytest.mark.vllm_case("vllm-16140", variant="no-pool")
# A working pool of four took up to 90 s on two busy cores. The hang is recognized by the workers' error, so its tests need less time.
PATIENT_S, HANG_S = 300, 60
# Each worker imports vLLM and each pool starts Ray, so only the smallest pool and a large one are tested. Servers use a pool of 2.
SMALL, LARGE = 1, 4


@pytest.fixture
def stale_workers(vllm_sidecar: Callable[[str], str]) -> dict[str, Any]:
    """Ray settings that make workers import a Ray older than the driver's."""
    return {"runtime_env": {"env_vars": {"PYTHONPATH": vllm_sidecar("ray-2.31.0")}}}


@clean
@pytest.mark.parametrize("pool_size", [0, LARGE])
def test_pool_with_clean_workers(vllm_probe: Probe, vllm_model_path: str, pool_size: int) -> None:
    assert vllm_probe("tokenize", timeout=PATIENT_S, model=vllm_model_path, pool_size=pool_size)["token_ids"]


@clean
def test_workaround_empty_runtime_env(vllm_probe: Probe, vllm_model_path: str) -> None:
    settings: dict[str, Any] = {"runtime_env": {}}
    assert vllm_probe("tokenize", timeout=PATIENT_S, model=vllm_model_path, pool_size=SMALL, extra_config=settings)[
        "token_ids"
    ]


@no_pool
def test_workaround_no_pool(vllm_probe: Probe, vllm_model_path: str, stale_workers: dict[str, Any]) -> None:
    assert vllm_probe("tokenize", model=vllm_model_path, pool_size=0, extra_config=stale_workers)["token_ids"]


@pytest.mark.parametrize("pool_size", [SMALL, LARGE])
def test_pool_with_stale_workers(
    vllm_probe: Probe, vllm_model_path: str, stale_workers: dict[str, Any], pool_size: int
) -> None:
    assert vllm_probe(
        "tokenize", timeout=HANG_S, model=vllm_model_path, pool_size=pool_size, extra_config=stale_workers
    )["token_ids"]


@clean
@pytest.mark.vllm_engine(front="serve", tokenizer_pool_size=[0, 2], timeout=PATIENT_S)
def test_server_with_clean_workers(vllm_server: Server) -> None:
    assert vllm_server.chat([{"role": "user", "content": "Hello"}], max_tokens=2)["choices"]


@pytest.mark.vllm_engine(front="serve", tokenizer_pool_size=2, timeout=100)
class TestServerWithStaleWorkers:
    @pytest.fixture
    def engine_spec(self, engine_spec: EngineSpec, stale_workers: dict[str, Any]) -> EngineSpec:
        return engine_spec.replace(tokenizer_pool_extra_config=stale_workers)

    def test_answers(self, vllm_server: Server) -> None:
        assert vllm_server.chat([{"role": "user", "content": "Hello"}], max_tokens=2)["choices"]
