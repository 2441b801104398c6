"""Defaults of the dialect, which a spec overrides, and vLLM's rejections.

The suite in conformance/ tests the translation for each version.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import engines, installed, plan

TWO_RANKS = {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 1}


@pytest.mark.parametrize(
    ("kwargs", "variables", "space"),
    [
        ({}, {}, "1"),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": "4"}, "4"),
        ({"gpu_memory_utilization": 0.1}, {}, None),
        ({"kv_cache_memory_bytes": 1000}, {}, None),
    ],
)
def test_the_cache_on_cpu_has_a_default_size(
    kwargs: dict[str, object], variables: dict[str, str], space: str | None
) -> None:
    engine_plan = plan.Plan(dict(kwargs), dict(variables), [])
    plan._cpu(TWO_RANKS, engine_plan)
    assert engine_plan.env.get("VLLM_CPU_KVCACHE_SPACE") == space
    assert engine_plan.kwargs == {**kwargs, "dtype": "float32"}


def test_a_spec_may_bind_threads() -> None:
    engine_plan = plan.Plan({"dtype": "bfloat16"}, {"VLLM_CPU_OMP_THREADS_BIND": "0-1"}, [])
    plan._cpu(TWO_RANKS, engine_plan)
    assert engine_plan.env["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert engine_plan.kwargs == {"dtype": "bfloat16"}


def cpu_environment(vllm: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the variables of an engine on the CPU with this source of vLLM."""
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: SimpleNamespace(submodule_search_locations=[vllm])
    )
    engine_plan = plan.Plan({}, {}, [])
    plan._cpu(TWO_RANKS, engine_plan)
    return engine_plan.env


@pytest.mark.parametrize("call", ["raise RuntimeError", "logger.warning"])
def test_libraries_are_preloaded_for_a_vllm_that_insists(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "v1" / "worker" / "cpu_worker.py"
    worker.parent.mkdir(parents=True)
    worker.write_text(f'{call}(\n    f"{{name}} is not found in LD_PRELOAD. "\n)\n')
    preloaded = cpu_environment(tmp_path, monkeypatch).get("LD_PRELOAD", "")
    assert ("libtcmalloc" in preloaded, "libiomp" in preloaded) == (call.startswith("raise"),) * 2


@pytest.mark.parametrize("ranks", ["range(self.local_world_size)", "enumerate(self.cpu_lists)"])
def test_threads_are_bound_to_all_cpus_where_vllm_fails_without_binding(
    ranks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "ompmultiprocessing.py").write_text(
        f"for i in {ranks}:\n    msg += str(i)\n"
    )
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {5, 3})
    binding = cpu_environment(tmp_path, monkeypatch)["VLLM_CPU_OMP_THREADS_BIND"]
    assert binding == ("3,5|3,5" if ranks.startswith("range") else "nobind")


def test_a_missing_optional_package_is_named() -> None:
    with pytest.raises(Unsupported) as caught, engines.as_unsupported():
        raise ImportError("Please install vllm[audio] for audio support")
    assert caught.value.claim == {"needs": "vllm[audio]"}


def test_a_configuration_that_the_platform_rejects_is_not_applicable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "version", lambda: "0.22.1")
    error = "1 validation error for ModelConfig\n  Value error, cumem allocator is not supported on current platform. [type=value_error]"
    with (
        pytest.raises(
            Unsupported, match=r"^cumem allocator is not supported on current platform\.$"
        ) as caught,
        engines.as_unsupported(),
    ):
        raise ValueError(error)
    assert caught.value.claim == {"refused_by": "vLLM 0.22.1"}


@pytest.mark.parametrize(
    ("variables", "routes"), [(["SOME_ROUTES"], "1"), (["ANOTHER"], "0"), ([], "0")]
)
def test_a_module_is_reloaded_if_it_reads_a_changed_variable(
    variables: list[str], routes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_server.py").write_text(
        "import os\nROUTES = os.environ.get('SOME_ROUTES', '0')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("made_server", None)
    module = importlib.import_module("made_server")
    monkeypatch.setenv("SOME_ROUTES", "1")
    engines._reload_if_affected("made_server", variables)
    assert routes == module.ROUTES


@pytest.mark.parametrize(
    ("attributes", "sleeps"), [({}, False), ({"is_sleep_mode_available": None}, True)]
)
def test_engines_sleep_if_vllm_asks_the_platform(
    attributes: dict[str, None], sleeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: 0.8.4 only checks whether the platform is CUDA, so engines failed at their start
    instead of being not applicable."""
    platform = SimpleNamespace(is_sleep_mode_available=lambda: True, is_cuda=lambda: False)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    interface = SimpleNamespace(Platform=type("Platform", (), attributes))
    monkeypatch.setitem(sys.modules, "vllm.platforms.interface", interface)
    assert installed.can_sleep() is sleeps


@pytest.mark.parametrize(
    ("source", "refused"), [("assert lora, 'V1 does not support LoRA yet.'", True), ("", False)]
)
def test_adapters_are_not_applicable_where_v1_asserts_that_there_are_none(
    source: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "vllm" / "v1" / "core" / "scheduler.py"
    module.parent.mkdir(parents=True)
    for folder in (module.parent, *module.parents[1:3]):
        (folder / "__init__.py").touch()
    module.write_text(source and f"def check(lora):\n    {source}\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plan, "has_v1", lambda: True)
    monkeypatch.setattr(plan, "known_environment", dict)
    monkeypatch.setattr(installed, "version", lambda: "0.7.2")
    spec = {**TWO_RANKS, "generation": "V1", "extra": {"enable_lora": True}}
    engine_plan = plan.Plan({}, {}, [])
    if refused:
        with pytest.raises(Unsupported, match="LoRA in V1") as caught:
            plan._generation(spec, "offline", engine_plan)
        assert caught.value.claim == {"since": "0.7.3"}
    else:
        plan._generation(spec, "offline", engine_plan)
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
