"""Compatibility of torch, driver and GPUs, checked before an engine starts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_vllm_regress.engines.gpus.leases import GpuLeases
from pytest_vllm_regress.engines.placement import PROBE, Placement
from pytest_vllm_regress.engines.target import Target, inspect
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.sizes import GIB, MIB
from tests.conftest import MakeTarget
from tests.helpers.fake_gpus import A100, H100, MACHINES, Card, Machine

from .conftest import Answer

V100 = Card("Tesla V100-SXM2-16GB", 16384 * 2**20, "7.0", 0x90)
Build = Callable[[str], Target]


@pytest.fixture
def build(make_target: MakeTarget) -> Build:
    """``build("13.0")`` returns an environment with a torch for that CUDA."""

    def make(cuda: str) -> Target:
        python = make_target(vllm="0.11.2", torch="2.9.0")
        (site,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
        (site / "torch").mkdir()
        (site / "torch" / "version.py").write_text(f"cuda: Optional[str] = '{cuda}'\n")
        return inspect("made-up", python, "gpu")

    return make


def test_a_driver_that_is_too_old_is_an_error_before_the_start(
    answer: Answer, build: Build
) -> None:
    answer(MACHINES["T4"])
    words = r"made-up cannot use it: Driver 550\.54\.15 supports CUDA 12\.4; torch 2\.9\.0 is built with 13\.0\. `vllm-regress audit --preflight`"
    with pytest.raises(UsageError, match=words):
        Placement(print).devices(build("13.0"))


def test_gpus_unknown_to_torch_are_skipped_and_reported(answer: Answer, build: Build) -> None:
    answer(Machine((V100, H100)))
    lines: list[str] = []
    placement = Placement(lines.append)
    target = build("13.0")
    assert [device.name for device in placement.devices(target)] == [H100.name]
    assert any("Tesla V100-SXM2-16GB has compute capability 7.0" in line for line in lines)
    assert placement.agent_environment(target)["CUDA_VISIBLE_DEVICES"] == "1"
    lines.clear()
    placement.devices(target)
    assert lines == []  # once


def test_problems_are_reported_once_before_the_start(
    answer: Answer, build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer(MACHINES["H100"])
    target = build("12.4")
    lost = dataclasses.replace(H100, number=0xA2, errors={"nvmlDeviceGetUUID": 15})
    answer(Machine((dataclasses.replace(H100, mode=3), lost)))
    lines: list[str] = []
    Placement(lines.append, {"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)}).devices(target)
    output = "\n".join(lines)
    for words in (
        "GPU 1: NVML: GPU is lost",
        "GPU 0 (NVIDIA H100 80GB HBM3) is in compute mode exclusive process: one engine at a time.",
        "There is no C compiler on PATH",
        "There is no nvcc",
    ):
        assert output.count(words) == 1, output


def test_the_agent_gets_the_index_of_the_gpu_of_a_slice(
    answer: Answer, build: Build, tmp_path: Path
) -> None:
    """Importing vLLM with the UUID of a MIG slice initializes CUDA, but an engine needs the UUID."""
    answer(MACHINES["MIG"])
    leases = GpuLeases(tmp_path)
    placement, target = Placement(print, leases=leases), build("12.4")
    assert placement.agent_environment(target)["CUDA_VISIBLE_DEVICES"] == "0"
    lease = leases.lease(placement.devices(target), 1, PROBE.needed, Deadline.after("start", 0))
    assert lease.environment["CUDA_VISIBLE_DEVICES"] == A100.slice_uuid(0)
    lease.release(Deadline.after("stop", 0))


@pytest.mark.parametrize(("size", "words"), [(64 * MIB, ["/dev/shm has 64 MiB."]), (GIB, [])])
def test_little_shared_memory_is_reported(
    size: int, words: list[str], answer: Answer, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(MACHINES["H100"])
    target = build("12.4")
    lines: list[str] = []
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_frsize=4096, f_blocks=size // 4096)
    )
    Placement(lines.append).devices(target)
    assert [line.removeprefix("note: ") for line in lines if "/dev/shm" in line] == words
