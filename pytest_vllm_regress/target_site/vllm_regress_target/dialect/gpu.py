"""GPU arguments for the installed vLLM (memory, dtype, visible devices), and whether processes that
use CUDA may be forked.

The request describes the GPUs, as NVML reports them. Nothing here initializes CUDA in the agent.
"""

import ctypes
import math
import os
import platform
import re
import signal
import sys
from contextlib import suppress
from typing import Any, Optional

from .. import Unsupported, spawning
from .installed import source_of, version

_FULL = 0.95
_TOKENS_IN_BLOCK = 16
_LEAST_BLOCKS = 4096
_FORK_S = 30
_REFUSED = re.compile(
    r"(?:ValueError|NotImplementedError|RuntimeError|AcceleratorError): "
    # A wheel without kernels for this GPU says "no kernel image".
    r"((?:CUDA error: no kernel image is available|No valid attention backend found"
    r"|Invalid attention backend|Bfloat16 is only supported on GPUs"
    r"|VLLM_USE_V1=1 is not supported)[^\n]*)"
)


def plan(spec: dict[str, Any], fields: set[str], kwargs: dict[str, Any], notes: list[str]) -> None:
    """Complete ``kwargs`` of EngineArgs for the GPUs in ``spec["gpu"]``.

    Arguments of the spec itself are kept. Raises ``Unsupported``.
    """
    gpu = spec["gpu"]
    devices = gpu["devices"]
    if any(device["part"] for device in devices) and not _accepts_uuids():
        raise Unsupported(
            f"vLLM {version()} takes only numbers in CUDA_VISIBLE_DEVICES, and a MIG slice has none",
            since="0.20.2",
        )
    old = [device for device in devices if device["capability"] and device["capability"] < [8, 0]]
    if old and "dtype" not in kwargs:
        kwargs["dtype"] = "float16"
        notes.append(
            "float16: {} has no bfloat16 (compute capability below 8.0)".format(old[0]["name"])
        )
    if gpu["tiny"] and "gpu_memory_utilization" not in kwargs:
        _limit_memory(gpu, fields, spec["max_model_len"], kwargs)


def _limit_memory(
    gpu: dict[str, Any], fields: set[str], max_model_len: int, kwargs: dict[str, Any]
) -> None:
    """Request a small fixed KV cache and only the share of the GPU that it needs, so that several
    engines and other tenants have room."""
    if "kv_cache_memory_bytes" in fields:
        kwargs.setdefault("kv_cache_memory_bytes", gpu["cache"])
    elif "num_gpu_blocks_override" in fields:
        kwargs.setdefault(
            "num_gpu_blocks_override",
            max(_LEAST_BLOCKS, 8 * math.ceil(max_model_len / _TOKENS_IN_BLOCK)),
        )
    shared = _counts_other_processes()
    share = max(
        (gpu["needed"] + (device["used"] if shared else 0)) / device["memory"]
        for device in gpu["devices"]
    )
    kwargs["gpu_memory_utilization"] = min(_FULL, math.ceil(share * 1e4) / 1e4)


def _counts_other_processes() -> bool:
    """Return whether V1 subtracts the memory of other processes from its own share (before 0.9.1)
    instead of comparing the share with free memory."""
    source = source_of("v1", "worker", "gpu_worker.py")
    return bool(source) and "requested_memory" not in source


def _accepts_uuids() -> bool:
    """Return whether CUDA_VISIBLE_DEVICES may hold UUIDs (0.20.2 and later).

    Before that vLLM converts its entries by ``int``.
    """
    return "nvmlDeviceGetHandleByUUID" in source_of("platforms", "cuda.py")


def forget_devices() -> None:
    """Clear what the agent's vLLM has cached about GPUs by their number, because the number may
    mean another GPU in this process."""
    from vllm.platforms import current_platform

    for cls in type(current_platform).__mro__:
        for value in vars(cls).values():
            function = getattr(value, "__func__", value)
            while function is not None:
                if callable(getattr(function, "cache_clear", None)):
                    function.cache_clear()
                function = getattr(function, "__wrapped__", None)


def refusal_in_own_log() -> Optional[str]:
    """Return why an engine core or worker rejected this GPU, from this process's log.

    The exception that vLLM raises says only that one failed.
    """
    sys.stderr.flush()
    with suppress(OSError):
        with open("/proc/self/fd/2", "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 200000))
            return refusal_in(log.read().decode(errors="replace"))
    return None


def refusal_in(log: str) -> Optional[str]:
    """Return vLLM's message in a log that it does not support something on this GPU, or None."""
    match = _REFUSED.search(log)
    return match.group(1) if match else None


def default_share() -> float:
    """Return the share of a GPU's memory that this vLLM uses by default."""
    from vllm.engine.arg_utils import EngineArgs

    return float(getattr(EngineArgs, "gpu_memory_utilization", 0.9))


def why_not_to_fork() -> Optional[str]:
    """Return why a fork of this process could not use CUDA, or None if it could, despite
    ``driver_threads``. Tests it in a fork."""
    if "microsoft" in platform.uname().release.lower():
        return "WSL: vLLM and CUDA want spawned processes there"
    has_driver_threads = bool(driver_threads())

    def result() -> str:
        signal.alarm(_FORK_S)
        return _fork_result(has_driver_threads)

    try:
        why: str = spawning.call_in_fork(result)
    except RuntimeError:
        return "a forked process could not be asked about CUDA"
    return None if why == "works" else why


def driver_threads() -> set[str]:
    """Return the ids of the threads that the NVIDIA driver has started in this process.

    With driver 580 on an H100, ``import vllm`` starts one, called cuda00001800007, by initializing
    NVML. vLLM itself forks engine cores then.
    """
    return {
        thread for thread in os.listdir("/proc/self/task") if _name_of(thread).startswith("cuda")
    }


def _name_of(thread: str) -> str:
    with suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
        return file.read()
    return ""  # it has ended


def _fork_result(has_driver_threads: bool) -> str:
    """Return why CUDA does not work in this forked process, or "works".

    Initializes CUDA only if threads of the driver leave it in doubt.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda._is_in_bad_fork():
        return "importing vLLM initialized CUDA"
    code = ctypes.CDLL("libcuda.so.1").cuInit(0) if has_driver_threads else 0
    return (
        f"importing vLLM started threads of the driver, and cuInit returns {code} in a fork"
        if code
        else "works"
    )
