"""A stand-in for NVML in this process, which answers for a machine chosen by the test."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress.util.paths import PACKAGE
from tests.helpers import fake_gpus
from tests.helpers.fake_gpus import Machine

# pytest runs within this process here, and what they import is forgotten: some of our modules would
# be there twice, and numpy loads once only.
importlib.import_module("numpy")
for folder in (
    "util",
    "environments",
    "gpus",
    "processes",
    "engines",
    "cases",
    "reporting",
    "plugin",
):
    for module in sorted((PACKAGE / folder).glob("[!_]*.py")):
        importlib.import_module(f"{PACKAGE.name}.{folder}.{module.stem}")

Answer = Callable[[Machine], Path]


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """``answer(machine)`` makes NVML answer for ``machine`` and returns the file with its answers."""
    import pynvml

    library = ctypes.CDLL(str(fake_gpus.nvml_folder() / "libnvidia-ml.so.1"))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    answers = tmp_path / "nvml"
    monkeypatch.setenv("FAKE_NVML", str(answers))

    def speak(machine: Machine) -> Path:
        answers.write_text(machine.text())
        return answers

    return speak
