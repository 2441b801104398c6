"""The dialect's part for GPUs: memory, dtype and visible devices in the words of the vLLM that is installed, and whether a fork is sound.

What the GPUs are comes with the request, from NVML; nothing here initializes CUDA in the agent.
"""

import contextlib
import math
import os
import platform
import re
import signal
import sys
from typing import Any, Dict, List, Optional, Set

from . import Unsupported

_FULL = 0.95
_TOKENS_IN_BLOCK = 16
_LEAST_BLOCKS = 4096
_FORK_S = 30
_REFUSED = re.compile(
    r"(?:ValueError|NotImplementedError): "
    r"((?:No valid attention backend found|Invalid attention backend|Bfloat16 is only supported on GPUs|VLLM_USE_V1=1 is not supported)[^\n]*)"
)


def plan(spec: Dict[str, Any], fields: Set[str], kwargs: Dict[str, Any], notes: List[str], version: str) -> None:
    """Complete ``kwargs`` of EngineArgs for the GPUs that ``spec["gpu"]`` describes. What the spec names itself stays. Raises ``Unsupported``."""
    gpu = spec["gpu"]
    devices = gpu["devices"]
    if any(each["part"] for each in devices) and not _takes_uuids():
        raise Unsupported(
            "vLLM {} takes only numbers in CUDA_VISIBLE_DEVICES, and a MIG slice has none".format(version),
            since="0.20.2",
        )
    old = [each for each in devices if each["capability"] and each["capability"] < [8, 0]]
    if old and "dtype" not in kwargs:
        kwargs["dtype"] = "float16"
        notes.append("float16: {} has no bfloat16 (compute capability below 8.0)".format(old[0]["name"]))
    if gpu["tiny"] and "gpu_memory_utilization" not in kwargs:
        _ask_for_little(gpu, fields, spec["max_model_len"], kwargs)


def _ask_for_little(gpu: Dict[str, Any], fields: Set[str], max_model_len: int, kwargs: Dict[str, Any]) -> None:
    """A small fixed KV cache, and no larger part of the GPU than that needs, so that several engines and other tenants have room."""
    if "kv_cache_memory_bytes" in fields:
        kwargs.setdefault("kv_cache_memory_bytes", gpu["cache"])
    elif "num_gpu_blocks_override" in fields:
        kwargs.setdefault(
            "num_gpu_blocks_override", max(_LEAST_BLOCKS, 8 * math.ceil(max_model_len / _TOKENS_IN_BLOCK))
        )
    others = _counts_others()
    share = max((gpu["needed"] + (each["used"] if others else 0)) / each["memory"] for each in gpu["devices"])
    kwargs["gpu_memory_utilization"] = min(_FULL, math.ceil(share * 1e4) / 1e4)


def _counts_others() -> bool:
    """V1 before 0.9.1 takes what other processes use off its own share; later ones compare the share with what is free (``requested_memory``)."""
    source = _source("v1", "worker", "gpu_worker.py")
    return bool(source) and "requested_memory" not in source


def _takes_uuids() -> bool:
    """From 0.20.2 on; before, what stands in CUDA_VISIBLE_DEVICES is given to ``int``."""
    return "nvmlDeviceGetHandleByUUID" in _source("platforms", "cuda.py")


def _source(*parts: str) -> str:
    """Of a module of vLLM's, read and not imported: importing a worker initializes CUDA (0.11.2)."""
    import vllm

    with contextlib.suppress(OSError):
        with open(os.path.join(os.path.dirname(vllm.__file__), *parts), errors="replace") as stream:
            return stream.read()
    return ""


def forget_devices() -> None:
    """What the agent's vLLM remembers of a GPU by its number: this process may see another one under that number."""
    from vllm.platforms import current_platform

    for kind in type(current_platform).__mro__:
        for value in vars(kind).values():
            function = getattr(value, "__func__", value)
            while function is not None:
                if callable(getattr(function, "cache_clear", None)):
                    function.cache_clear()
                function = getattr(function, "__wrapped__", None)


def refused_in_log() -> Optional[str]:
    """What an engine-core process or worker refused on this GPU, as its log says it: the exception that comes back says only that it failed."""
    sys.stderr.flush()
    with contextlib.suppress(OSError):
        with open("/proc/self/fd/2", "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 200000))
            return refused(log.read().decode(errors="replace"))
    return None


def refused(log: str) -> Optional[str]:
    """vLLM's words for what it does not do on this GPU, in the log of one of its processes."""
    found = _REFUSED.search(log)
    return found.group(1) if found else None


def default_share() -> float:
    """The part of a GPU that this vLLM asks for when it is told nothing."""
    from vllm.engine.arg_utils import EngineArgs

    return float(getattr(EngineArgs, "gpu_memory_utilization", 0.9))


def why_not_to_fork() -> Optional[str]:
    """Why a process forked from this one could not use CUDA; None where it can. Asked once, of a fork."""
    if "microsoft" in platform.uname().release.lower():
        return "WSL: vLLM and CUDA want spawned processes there"
    if "torch" not in sys.modules:
        return None
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(_FORK_S)
            os.write(writer, b"bad" if _is_bad_fork() else b"good")
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    if answer == b"good":
        return None
    return "importing vLLM initialized CUDA" if answer == b"bad" else "a forked process could not be asked about CUDA"


def _is_bad_fork() -> bool:
    import torch

    return bool(torch.cuda._is_in_bad_fork())
