"""The platform that vLLM sees: a CPU for tensors, but an accelerator in every decision vLLM makes."""

import os
from typing import Any, Optional

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from ..dialect import speculation
from ..dialect.installed import let_platform_support_v1, prefer_v1, uses_v1
from ..dialect.signatures import SimulationGap
from . import DEVICE_NAME

WORKER_V0 = "vllm_regress_target.sim.worker_v0.SimWorkerV0"
WORKER_V1 = "vllm_regress_target.sim.worker_v1.SimWorkerV1"
SPECULATIVE_WORKER_V0 = "vllm.spec_decode.spec_decode_worker.create_spec_worker"
PREFERS_V1 = "VLLM_REGRESS_SIM_PREFERS_V1"
"""Variable: vLLM chooses V1 wherever it does on CUDA, not V0 as on platforms of others (0.8 to
0.10)."""
MEMORY = 16 << 30  # bytes; vLLM derives defaults such as the batch's token budget from it


class SimPlatform(Platform):
    """The simulated device as a vLLM platform. The package's docstring describes it."""

    _enum = PlatformEnum.OOT
    device_name = (
        "cpu"  # vLLM creates torch devices with this name; get_device_name() is for people
    )
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    ray_device_key = "GPU"  # the only resource for which Ray assigns numbers to workers; the dialect declares enough of them
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
        """Do nothing.

        Without this method the output thread of some versions dies of NotImplementedError and the
        engine hangs.
        """

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
    def pre_register_and_update(cls, parser: Optional[Any] = None) -> None:
        """Called by vLLM before it chooses between V0 and V1."""
        let_platform_support_v1(cls)

    @classmethod
    def supports_v1(cls, model_config: Any) -> bool:
        if os.environ.get(PREFERS_V1) == "1":
            prefer_v1(cls.device_name)
        return True

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        return False

    @classmethod
    def get_attn_backend_cls(cls, *args: Any, **kwargs: Any) -> str:
        raise SimulationGap(
            "vLLM asked for an attention backend, but the simulated device computes no attention"
        )

    @classmethod
    def get_punica_wrapper(cls) -> str:
        return "vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Set the worker class and reject options that need a real network."""
        parallel, speculative = (
            vllm_config.parallel_config,
            getattr(vllm_config, "speculative_config", None),
        )
        if parallel.worker_cls == "auto":
            parallel.worker_cls = WORKER_V1 if uses_v1() else WORKER_V0
            if speculative is not None and not uses_v1():  # vLLM's own worker wraps ours
                parallel.worker_cls, parallel.sd_worker_cls = SPECULATIVE_WORKER_V0, WORKER_V0
                speculation.disable_flash_attention_scorer(speculative)
        cache = vllm_config.cache_config
        if cache is not None and getattr(cache, "block_size", 0) is None:
            cache.block_size = 16
        if speculative is not None and not speculation.drafts_by_ngrams(speculative):
            raise SimulationGap("drafts come from n-grams only: any other method needs a network")
        if getattr(vllm_config.scheduler_config, "num_scheduler_steps", 1) > 1:
            if uses_v1():  # up to 0.7.3 it is the platform that says this, on CUDA too
                raise NotImplementedError("V1 does not support multi-step scheduling")
            raise SimulationGap(
                "multi-step scheduling (num_scheduler_steps > 1) runs inside the GPU model runner"
            )
