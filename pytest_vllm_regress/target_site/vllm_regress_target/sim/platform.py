"""The platform vLLM is given: a CPU for tensors, an accelerator for everything that decides what vLLM does."""

from typing import Any, Optional

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from . import DEVICE_NAME
from .compat import SimulationGap

WORKER_V0 = "vllm_regress_target.sim.worker_v0.SimWorker"
WORKER_V1 = "vllm_regress_target.sim.worker_v1.SimWorker"
SPECULATIVE_WORKER_V0 = "vllm.spec_decode.spec_decode_worker.create_spec_worker"
MEMORY = 16 << 30  # bytes; vLLM derives defaults such as the batch's token budget from it


def _uses_v1() -> bool:
    """Which engine this process builds: V1 unless this vLLM still has V0 and was told or decided to use it."""
    import vllm.envs as envs

    try:
        return bool(envs.VLLM_USE_V1)
    except AttributeError:  # V0 is gone, and its switch with it
        return True


def _drafts_by_ngrams(speculative: Any) -> bool:
    method = getattr(speculative, "method", None)
    return method == "ngram" or (method is None and getattr(speculative, "ngram_prompt_lookup_max", 0) > 0)


def _score_by_expansion(speculative: Any) -> None:
    """V0's other way to score drafts is FlashAttention's."""
    for name in ("speculative_disable_mqa_scorer", "disable_mqa_scorer"):
        if hasattr(speculative, name):
            setattr(speculative, name, True)


class SimPlatform(Platform):
    """See the package's docstring."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"  # vLLM makes torch devices of it; get_device_name() is what people read
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    ray_device_key = "GPU"  # the only kind of accelerator for which Ray tells a worker its number; the dialect gives Ray enough of them
    simple_compile_backend = "eager"
    supported_quantization: Any = []  # noqa: RUF012  # as the base class declares it
    device_control_env_var = "VLLM_REGRESS_VISIBLE_DEVICES"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return DEVICE_NAME

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        return f"vllm-regress-sim-{device_id}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return MEMORY

    @classmethod
    def get_current_memory_usage(cls, device: Optional[Any] = None) -> float:
        return 0.0

    @classmethod
    def is_async_output_supported(cls, enforce_eager: Optional[bool]) -> bool:
        return not enforce_eager

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.no_grad()

    @classmethod
    def set_device(cls, device: Any) -> None:
        """Nothing to select. Left out, some versions' output thread dies of NotImplementedError and the engine waits for ever."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        torch.manual_seed(seed)

    @classmethod
    def empty_cache(cls) -> None:
        """Nothing is cached."""

    @classmethod
    def synchronize(cls) -> None:
        """Nothing runs asynchronously."""

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def is_sleep_mode_available(cls) -> bool:
        return True

    @classmethod
    def supports_v1(cls, model_config: Any) -> bool:
        return True

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        return False

    @classmethod
    def get_attn_backend_cls(cls, *args: Any, **kwargs: Any) -> str:
        raise SimulationGap("an attention backend was asked for, but no attention is computed")

    @classmethod
    def get_punica_wrapper(cls) -> str:
        return "vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Name the worker, and switch off what only a real network needs."""
        parallel, speculative = vllm_config.parallel_config, getattr(vllm_config, "speculative_config", None)
        if parallel.worker_cls == "auto":
            parallel.worker_cls = WORKER_V1 if _uses_v1() else WORKER_V0
            if speculative is not None and not _uses_v1():  # vLLM's own, around ours
                parallel.worker_cls, parallel.sd_worker_cls = SPECULATIVE_WORKER_V0, WORKER_V0
                _score_by_expansion(speculative)
        cache = vllm_config.cache_config
        if cache is not None and getattr(cache, "block_size", 0) is None:
            cache.block_size = 16
        if speculative is not None and not _drafts_by_ngrams(speculative):
            raise SimulationGap("drafts come from n-grams only: any other method needs a network")
        if getattr(vllm_config.scheduler_config, "num_scheduler_steps", 1) > 1:
            raise SimulationGap("multi-step scheduling (num_scheduler_steps > 1) runs inside the GPU model runner")
