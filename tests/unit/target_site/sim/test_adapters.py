"""LoRA adapters on the simulated device: vLLM's own loader runs all checks of its own manager,
whatever their names."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target.sim.adapters import (
    MODULES,
    PACKED,
    load_adapter,
)


class Manager:
    """vLLM's manager, which cannot be created without a network."""

    def __init__(self, network: Any) -> None:
        raise AssertionError("there is no network")

    def _validate_what_one_version_alone_has(self, adapter: Any) -> None:
        assert self.modules == {}  # type: ignore[attr-defined]
        if adapter.modules_to_save and self._head is None:  # type: ignore[attr-defined]
            raise ValueError("the model has no head for this adapter")


class Loader:
    _manager_cls = Manager

    def _load_adapter(self, request: Any) -> Any:
        manager: Any = self._adapter_manager  # type: ignore[attr-defined]
        assert (manager.supported_lora_modules, manager.packed_modules_mapping) == (MODULES, PACKED)
        adapter = SimpleNamespace(modules_to_save=request.modules_to_save)
        manager._validate_what_one_version_alone_has(adapter)
        return adapter


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("vllm.lora.worker_manager")
    module.WorkerLoRAManager, module.LoRAModel = Loader, object
    lora: Any = ModuleType("vllm.lora")
    lora.worker_manager = module
    modules = {"vllm": ModuleType("vllm"), "vllm.lora": lora, "vllm.lora.worker_manager": module}
    for name, stub in modules.items():
        monkeypatch.setitem(sys.modules, name, stub)
    model = SimpleNamespace(hf_config=SimpleNamespace(), get_vocab_size=lambda: 512)
    return SimpleNamespace(lora_config=SimpleNamespace(), model_config=model)


def test_an_adapter_passes_checks_of_any_name(config: Any) -> None:
    assert load_adapter(config, SimpleNamespace(modules_to_save=[])).modules_to_save == []


def test_an_adapter_that_the_manager_rejects_is_rejected(config: Any) -> None:
    with pytest.raises(ValueError, match="no head"):
        load_adapter(config, SimpleNamespace(modules_to_save=["score"]))
