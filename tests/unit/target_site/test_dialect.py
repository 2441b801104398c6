"""What the dialect sets on its own gives way to what a spec asks for. How it words a spec for each vLLM, the suite in conformance/ shows."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import engines, installed


@pytest.mark.parametrize(
    ("kwargs", "variables", "space"),
    [
        ({}, {}, "1"),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": "4"}, "4"),
        ({"gpu_memory_utilization": 0.1}, {}, None),
        ({"kv_cache_memory_bytes": 1000}, {}, None),
    ],
)
def test_memory_for_the_cache_on_cpu(kwargs: dict[str, object], variables: dict[str, str], space: str | None) -> None:
    made = engines.Plan(dict(kwargs), dict(variables), [])
    engines._cpu(made)
    assert made.env.get("VLLM_CPU_KVCACHE_SPACE") == space
    assert made.kwargs == {**kwargs, "dtype": "float32"}


def test_threads_are_bound_where_a_spec_says_so() -> None:
    made = engines.Plan({"dtype": "bfloat16"}, {"VLLM_CPU_OMP_THREADS_BIND": "0-1"}, [])
    engines._cpu(made)
    assert made.env["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert made.kwargs == {"dtype": "bfloat16"}


def test_a_package_that_vllm_leaves_to_its_user_is_named() -> None:
    with pytest.raises(Unsupported) as caught, engines.refusals():
        raise ImportError("Please install vllm[audio] for audio support")
    assert caught.value.claim == {"needs": "vllm[audio]"}


def test_what_a_configuration_refuses_on_this_platform_is_not_applicable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "version", lambda: "0.22.1")
    error = "1 validation error for ModelConfig\n  Value error, cumem allocator is not supported on current platform. [type=value_error]"
    with (
        pytest.raises(Unsupported, match=r"^cumem allocator is not supported on current platform\.$") as caught,
        engines.refusals(),
    ):
        raise ValueError(error)
    assert caught.value.claim == {"refused_by": "vLLM 0.22.1"}


@pytest.mark.parametrize(("variables", "routes"), [(["SOME_ROUTES"], "1"), (["ANOTHER"], "0"), ([], "0")])
def test_what_an_imported_module_decided_by_a_variable_is_decided_again(
    variables: list[str], routes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_server.py").write_text("import os\nROUTES = os.environ.get('SOME_ROUTES', '0')\n")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("made_server", None)
    module = importlib.import_module("made_server")
    monkeypatch.setenv("SOME_ROUTES", "1")
    engines._read_again("made_server", variables)
    assert routes == module.ROUTES


@pytest.mark.parametrize(("asked", "sleeps"), [({}, False), ({"is_sleep_mode_available": None}, True)])
def test_engines_sleep_where_vllm_itself_asks_the_platform(
    asked: dict[str, None], sleeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was red: 0.8.4 asks no platform but whether it is CUDA, so its engines ended at their start instead of not applicable."""
    platform = SimpleNamespace(is_sleep_mode_available=lambda: True, is_cuda=lambda: False)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    interface = SimpleNamespace(Platform=type("Platform", (), asked))
    monkeypatch.setitem(sys.modules, "vllm.platforms.interface", interface)
    assert installed.can_sleep() is sleeps
