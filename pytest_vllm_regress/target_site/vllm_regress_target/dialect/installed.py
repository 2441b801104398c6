"""Facts about the installed vLLM, found by looking at its modules; and which engine it chooses."""

import importlib
import importlib.util
import re
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any


def version() -> str:
    """Return the version of the installed vLLM."""
    import vllm

    return str(vllm.__version__)


def engine_fields(front: str = "offline") -> set[str]:
    """Return the names of the engine arguments that this vLLM takes."""
    from vllm.engine import arg_utils

    arguments_class = arg_utils.EngineArgs if front == "offline" else arg_utils.AsyncEngineArgs
    return {field.name for field in fields(arguments_class)}


def has_v1() -> bool:
    """Return whether V1 is usable: it is installed, and the switch or the default selects it."""
    return importlib.util.find_spec("vllm.v1") is not None and (
        "VLLM_USE_V1" in known_environment() or not has_v0()
    )


def has_v0() -> bool:
    """Return whether V0 is installed. Without it LLMEngine is an alias of V1's class."""
    from vllm.engine.llm_engine import LLMEngine

    return not LLMEngine.__module__.startswith("vllm.v1")


def uses_v1() -> bool:
    """Return whether an engine that starts in this process is V1: always, unless this vLLM still
    has V0 and its switch selects that."""
    import vllm.envs as envs

    try:
        return bool(envs.VLLM_USE_V1)
    except AttributeError:  # versions without V0 have no switch
        return True


def needs_preloaded_libraries() -> bool:
    """Return whether the CPU worker refuses to start unless LD_PRELOAD names libtcmalloc and
    libiomp (vllm#37561)."""
    pattern = r"raise RuntimeError\(\s*f\"\{name\} is not found in LD_PRELOAD"
    return re.search(pattern, source_of("v1", "worker", "cpu_worker.py")) is not None


def refuses_unbound_threads() -> bool:
    """Return whether the CPU executor fails with VLLM_CPU_OMP_THREADS_BIND=nobind (vllm#40569)."""
    pattern = r"in range\(self\.local_world_size\):\s*msg \+="
    return re.search(pattern, source_of("utils", "ompmultiprocessing.py")) is not None


def source_of(*path: str) -> str:
    """Return the source of a module of vLLM, by its path below the package; empty if it does not
    exist.

    It is read and not imported, because importing a worker initializes CUDA (0.11.2).
    """
    package = importlib.util.find_spec("vllm")
    for folder in (package.submodule_search_locations or ()) if package else ():
        with suppress(OSError):
            return Path(folder, *path).read_text(encoding="utf-8", errors="replace")
    return ""


def prefer_v1(device_name: str) -> None:
    """Make vLLM choose V1 on the platform ``device_name`` as on CUDA, if the user does not choose.

    From 0.8 to 0.10 it asks one function whether to fall back to V0 for each feature that V1 has as
    an experiment, and a platform of others is one.
    """
    from vllm.engine import arg_utils

    falls_back: Any = getattr(arg_utils, "_warn_or_fallback", None)
    if falls_back is None or falls_back.__module__ == __name__:
        return

    def falls_back_as_on_cuda(feature_name: str) -> bool:
        return feature_name != device_name and bool(falls_back(feature_name))

    arg_utils._warn_or_fallback = falls_back_as_on_cuda


def let_platform_support_v1(platform: Any) -> None:
    """Make vLLM accept V1 on the platform class ``platform`` where it does not ask the platform.

    From 0.8.3 on it asks ``supports_v1``. In 0.8.1 and 0.8.2 the function that chooses the
    generation wants a platform that is like CUDA. Other modules ask that, too, and import kernels
    then, so the platform says yes only while that function runs.
    """
    from vllm.engine.arg_utils import EngineArgs

    chooses: Any = getattr(EngineArgs, "_is_v1_supported_oracle", None)
    asks_platform = any(hasattr(base, "supports_v1") for base in platform.__mro__[1:])
    if chooses is None or asks_platform or chooses.__module__ == __name__:
        return

    def chooses_as_on_cuda(arguments: Any, model_config: Any) -> bool:
        platform.is_cuda_alike = lambda _: True
        try:
            return bool(chooses(arguments, model_config))
        finally:
            del platform.is_cuda_alike

    EngineArgs._is_v1_supported_oracle = chooses_as_on_cuda


def generation_is_read_at_import() -> bool:
    """Return whether modules choose between V0 and V1 when they are imported (0.7).

    The agent must then leave those imports to its children.
    """
    from vllm.engine.arg_utils import EngineArgs

    return "VLLM_USE_V1" in known_environment() and not hasattr(
        EngineArgs, "_is_v1_supported_oracle"
    )


def known_environment() -> dict[str, Any]:
    """Return the environment variables that vLLM reads, by name."""
    from vllm import envs

    return dict(getattr(envs, "environment_variables", {}))


def has_ray_tokenizer_pool() -> bool:
    """Return whether the tokenizer pool consists of Ray actors (up to 0.8.4)."""
    parent = "vllm.transformers_utils.tokenizer_group"
    with suppress(ImportError):
        return importlib.util.find_spec(parent + ".ray_tokenizer_group") is not None
    return False


def can_sleep() -> bool:
    """Return whether vLLM lets engines sleep on this platform.

    Up to 0.8.4 it does so on CUDA only and does not ask the platform.
    """
    from vllm.platforms import current_platform
    from vllm.platforms.interface import Platform

    asks = hasattr(Platform, "is_sleep_mode_available")
    return bool(current_platform.is_sleep_mode_available() if asks else current_platform.is_cuda())


def v1_has_priorities() -> bool:
    """Return whether V1's scheduler has a priority queue."""
    try:
        return importlib.util.find_spec("vllm.v1.core.sched.request_queue") is not None
    except ModuleNotFoundError:  # in 0.7 the scheduler is a single module
        return False


def sound_needs() -> str:
    """Return the missing package without which this vLLM reads no sound file, or an empty string.

    It needs librosa up to 0.13, and from 0.20 on soundfile or one of several others.
    """
    installed: dict[str, bool] = {}
    for name in ("vllm.multimodal.audio", "vllm.multimodal.media.audio"):
        with suppress(ImportError):
            module = vars(importlib.import_module(name))
            for package in ("librosa", "soundfile", "av"):
                if package in module:
                    installed[package] = type(module[package]).__name__ != "PlaceholderModule"
    if "librosa" in installed:
        return "" if installed["librosa"] else "librosa"
    return "" if any(installed.values()) or not installed else "soundfile"


ENGINE_DEATH_ERRORS = frozenset(
    {
        "AsyncEngineDeadError",
        "MQEngineDeadError",
        "EngineDeadError",
        "RayActorError",
        "ActorDiedError",
    }
)
"""Class names used by vLLM (V0, V0 with an engine process of its own, V1) and by Ray.

V1 survives an ``EngineGenerationError``, so it is not one.
"""


def is_engine_death(error: BaseException) -> bool:
    """Return whether vLLM or Ray reports a dead engine by ``error``."""
    return any(cls.__name__ in ENGINE_DEATH_ERRORS for cls in type(error).__mro__)
