"""Which engines vLLM chooses on the simulated device."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target.dialect.installed import (
    let_platform_support_v1,
)


class Platform:
    """A platform of vLLM without a question for V1, as up to 0.8.2."""

    def is_cuda_alike(self) -> bool:
        return False


class AskedPlatform(Platform):
    """A platform of vLLM from 0.8.3 on."""

    def supports_v1(self) -> bool:
        return False


class EngineArgs:
    """Engine arguments that choose V1 on platforms like CUDA only."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    def _is_v1_supported_oracle(self, model_config: object) -> bool:
        if model_config is None:
            raise ValueError("no model")
        return self.platform.is_cuda_alike()


@pytest.fixture
def arguments_class(monkeypatch: pytest.MonkeyPatch) -> type[EngineArgs]:
    """Return the class of engine arguments of an installed vLLM."""

    class Installed(EngineArgs):
        def _is_v1_supported_oracle(self, model_config: object) -> bool:
            return super()._is_v1_supported_oracle(model_config)

    module = ModuleType("vllm.engine.arg_utils")
    module.EngineArgs = Installed  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.engine"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", module)
    return Installed


def test_v1_is_chosen_where_vllm_does_not_ask_the_platform(
    arguments_class: type[EngineArgs],
) -> None:
    class Simulated(Platform):
        pass

    arguments = arguments_class(Simulated())
    assert not arguments._is_v1_supported_oracle("model")
    for _ in range(2):  # vLLM calls the plug-in before each engine
        let_platform_support_v1(Simulated)
        assert arguments._is_v1_supported_oracle("model")
        assert not arguments.platform.is_cuda_alike()
    with pytest.raises(ValueError, match="no model"):
        arguments._is_v1_supported_oracle(None)
    assert not arguments.platform.is_cuda_alike()


def test_nothing_is_changed_where_vllm_asks_the_platform(
    arguments_class: type[EngineArgs],
) -> None:
    class Simulated(AskedPlatform):
        def supports_v1(self) -> bool:
            return True

    let_platform_support_v1(Simulated)
    assert not arguments_class(Simulated())._is_v1_supported_oracle("model")


def test_nothing_is_changed_where_vllm_does_not_choose(
    arguments_class: type[EngineArgs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["vllm.engine.arg_utils"], "EngineArgs", object)
    let_platform_support_v1(Platform)  # 0.7 has a variable only
