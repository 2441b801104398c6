"""Executors and start methods: the GPUs of each Ray node, devices without two nodes, and how
processes start."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported, WrongRequest
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import plan
from pytest_vllm_regress.target_site.vllm_regress_target.dialect.ray_clusters import EXECUTOR

FIELDS = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"}
CHANNELS = {"VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE": "shm"}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Ray appear installed without importing it."""
    ray = ModuleType("ray")
    ray.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", ray)


def planned(device: str = "sim", **axes: Any) -> plan.Plan:
    engine_plan = plan.Plan({}, {}, [])
    spec = EngineSpec.create(**axes).as_request(model_path="/m", device=device)
    plan._parallel(spec, "async", FIELDS, engine_plan)
    return engine_plan


@pytest.mark.parametrize(("tp", "pp", "node_gpus"), [(2, 1, 1), (1, 2, 1), (2, 3, 3), (4, 2, 4)])
def test_each_node_has_half_of_the_ranks(tp: int, pp: int, node_gpus: int) -> None:
    engine_plan = planned(tensor_parallel_size=tp, pipeline_parallel_size=pp, executor=EXECUTOR)
    assert (engine_plan.node_gpus, engine_plan.env) == (node_gpus, CHANNELS)
    assert engine_plan.kwargs["distributed_executor_backend"] == "ray"


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({}, "must be even (it is 1)"),
        ({"tensor_parallel_size": 3}, "must be even (it is 3)"),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2}, "data_parallel_size 1 (it is 2)"),
    ],
)
def test_ranks_that_cannot_be_divided_among_two_nodes(axes: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongRequest) as caught:
        planned(executor=EXECUTOR, **axes)
    assert message in str(caught.value)
    assert "executor='ray'" in str(caught.value)  # the suggested alternative


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_two_nodes_need_the_simulated_device(device: str) -> None:
    with pytest.raises(Unsupported, match="on the simulated device only") as caught:
        planned(device, tensor_parallel_size=2, executor=EXECUTOR)
    assert caught.value.claim == {"device": device}


def test_a_missing_ray_is_not_applicable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(plan, "version", lambda: "0.33.0")
    with pytest.raises(Unsupported, match=r"Ray is not installed beside vLLM 0\.33\.0") as caught:
        planned(tensor_parallel_size=2, executor=EXECUTOR)
    assert caught.value.claim == {"needs": "ray"}


def test_a_local_ray_reports_a_gpu_for_each_rank() -> None:
    engine_plan = planned(tensor_parallel_size=2, data_parallel_size=2, executor="ray")
    assert (engine_plan.node_gpus, engine_plan.env) == (
        0,
        {"RAY_OVERRIDE_RESOURCES": '{"GPU": 4}', **CHANNELS},
    )


VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"


@pytest.mark.parametrize(
    ("model", "front", "device", "method"),
    [
        ("text", "serve", "sim", "fork"),
        ("text", "offline", "sim", None),
        ("text", "serve", "gpu", None),
        ("speech", "serve", "sim", "spawn"),
        ("speech", "offline", "sim", "spawn"),
        ("audio", "serve", "sim", "spawn"),
    ],
)
def test_the_start_method_depends_on_model_front_and_device(
    model: str, front: str, device: str, method: str | None
) -> None:
    engine_plan = plan.Plan({}, {}, [])
    plan.start_method({"model": model, "device": device}, front, engine_plan)
    assert engine_plan.env.get(VARIABLE) == method


def test_a_spec_overrides_the_start_method() -> None:
    engine_plan = plan.Plan({}, {VARIABLE: "fork"}, [])
    plan.start_method({"model": "speech", "device": "sim"}, "serve", engine_plan)
    assert engine_plan.env == {VARIABLE: "fork"}
