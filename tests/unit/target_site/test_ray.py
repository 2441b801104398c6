"""What a spec says of executors and processes: the GPUs of each Ray node, where there are no two nodes, and how processes start."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported, WrongRequest
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import engines
from pytest_vllm_regress.target_site.vllm_regress_target.dialect.ray_nodes import EXECUTOR

FIELDS = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"}
CHANNELS = {"VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE": "shm"}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray that can be found, and is not imported."""
    made = ModuleType("ray")
    made.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", made)


def planned(device: str = "sim", **axes: Any) -> engines.Plan:
    made = engines.Plan({}, {}, [])
    spec = EngineSpec.create(**axes).as_request(model_path="/m", device=device)
    engines._parallel(spec, "async", FIELDS, made)
    return made


@pytest.mark.parametrize(("tp", "pp", "each"), [(2, 1, 1), (1, 2, 1), (2, 3, 3), (4, 2, 4)])
def test_each_node_has_half_of_the_ranks(tp: int, pp: int, each: int) -> None:
    made = planned(tensor_parallel_size=tp, pipeline_parallel_size=pp, executor=EXECUTOR)
    assert (made.node_gpus, made.env) == (each, CHANNELS)
    assert made.kwargs["distributed_executor_backend"] == "ray"


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        ({}, "must be even (it is 1)"),
        ({"tensor_parallel_size": 3}, "must be even (it is 3)"),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2}, "data_parallel_size 1 (it is 2)"),
    ],
)
def test_ranks_that_two_nodes_cannot_share(axes: dict[str, Any], told: str) -> None:
    with pytest.raises(WrongRequest) as caught:
        planned(executor=EXECUTOR, **axes)
    assert told in str(caught.value)
    assert "executor='ray'" in str(caught.value)  # what to say instead


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_other_devices_have_no_two_nodes(device: str) -> None:
    with pytest.raises(Unsupported, match="on the simulated device only") as caught:
        planned(device, tensor_parallel_size=2, executor=EXECUTOR)
    assert caught.value.claim == {"device": device}


def test_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(engines, "version", lambda: "0.33.0")
    with pytest.raises(Unsupported, match=r"Ray is not installed beside vLLM 0\.33\.0") as caught:
        planned(tensor_parallel_size=2, executor=EXECUTOR)
    assert caught.value.claim == {"needs": "ray"}


def test_a_local_ray_believes_in_a_gpu_for_each_rank() -> None:
    made = planned(tensor_parallel_size=2, data_parallel_size=2, executor="ray")
    assert (made.node_gpus, made.env) == (0, {"RAY_OVERRIDE_RESOURCES": '{"GPU": 4}', **CHANNELS})


VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"


@pytest.mark.parametrize(
    ("model", "front", "device", "method"),
    [
        ("text", "serve", "sim", "fork"),
        ("text", "offline", "sim", None),
        ("text", "serve", "gpu", None),
        ("speech", "serve", "sim", "spawn"),
        ("speech", "offline", "sim", "spawn"),
    ],
)
def test_the_start_method_by_model_front_and_device(model: str, front: str, device: str, method: str | None) -> None:
    made = engines.Plan({}, {}, [])
    engines._start_method({"model": model, "device": device}, front, made)
    assert made.env.get(VARIABLE) == method


def test_a_spec_s_own_start_method_counts() -> None:
    made = engines.Plan({}, {VARIABLE: "fork"}, [])
    engines._start_method({"model": "speech", "device": "sim"}, "serve", made)
    assert made.env == {VARIABLE: "fork"}
