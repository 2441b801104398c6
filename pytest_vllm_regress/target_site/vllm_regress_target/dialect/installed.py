"""What is installed here, told by looking at it."""

import contextlib
import importlib
import importlib.util
from typing import Any, Dict


def version() -> str:
    """The installed vLLM's version."""
    import vllm

    return str(vllm.__version__)


def has_v1() -> bool:
    """V1 is usable: the engine is there and the switch or the default leads to it."""
    return importlib.util.find_spec("vllm.v1") is not None and ("VLLM_USE_V1" in known_environment() or not has_v0())


def has_v0() -> bool:
    """V0 is there: LLMEngine is not an alias of V1's."""
    from vllm.engine.llm_engine import LLMEngine

    return not LLMEngine.__module__.startswith("vllm.v1")


def known_environment() -> Dict[str, Any]:
    """The environment variables that vLLM reads, by name."""
    from vllm import envs

    return dict(getattr(envs, "environment_variables", {}))


def can_sleep() -> bool:
    """Whether vLLM lets engines sleep on this platform; up to 0.8.4 that was CUDA alone, and no platform was asked."""
    from vllm.platforms import current_platform
    from vllm.platforms.interface import Platform

    asks = hasattr(Platform, "is_sleep_mode_available")
    return bool(current_platform.is_sleep_mode_available() if asks else current_platform.is_cuda())


def v1_has_priorities() -> bool:
    """V1's scheduler has a queue in the order of priorities."""
    try:
        return importlib.util.find_spec("vllm.v1.core.sched.request_queue") is not None
    except ModuleNotFoundError:  # 0.7: the scheduler is one module
        return False


def sound_needs() -> str:
    """The package without which this vLLM reads no sound file; empty where it is there. It was librosa (0.7 to 0.13, as looked at); later (0.20
    on) it is soundfile or another of several."""
    found: Dict[str, bool] = {}
    for name in ("vllm.multimodal.audio", "vllm.multimodal.media.audio"):
        with contextlib.suppress(ImportError):
            module = vars(importlib.import_module(name))
            for package in ("librosa", "soundfile", "av"):
                if package in module:
                    found[package] = type(module[package]).__name__ != "PlaceholderModule"
    if "librosa" in found:
        return "" if found["librosa"] else "librosa"
    return "" if any(found.values()) or not found else "soundfile"
