"""What torch, driver and cards make of each other, before an engine starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.placement import Placement
from pytest_vllm_regress.engines.target import Target, inspect
from pytest_vllm_regress.errors import UsageError
from tests.conftest import MakeTarget
from tests.helpers.gpu_standins import H100, MACHINES, Card, Machine

from .conftest import Answer

V100 = Card("Tesla V100-SXM2-16GB", 16384 * 2**20, "7.0", 0x90)
Build = Callable[[str], Target]


@pytest.fixture
def build(make_target: MakeTarget) -> Build:
    """``build("13.0")``: an environment with a torch for that CUDA."""

    def make(cuda: str) -> Target:
        python = make_target(vllm="0.11.2", torch="2.9.0")
        (site,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
        (site / "torch").mkdir()
        (site / "torch" / "version.py").write_text(f"cuda: Optional[str] = '{cuda}'\n")
        return inspect("made-up", python, "gpu")

    return make


def test_a_driver_that_is_too_old_is_an_error_before_the_start(answer: Answer, build: Build) -> None:
    answer(MACHINES["T4"])
    words = r"made-up cannot use it: Driver 550\.54\.15 serves CUDA 12\.4; torch 2\.9\.0 is built with 13\.0\. `vllm-regress audit --preflight`"
    with pytest.raises(UsageError, match=words):
        Placement(print).devices(build("13.0"))


def test_cards_that_torch_does_not_know_are_left_out_and_said(answer: Answer, build: Build) -> None:
    answer(Machine((V100, H100)))
    told: list[str] = []
    placement = Placement(told.append)
    target = build("13.0")
    assert [device.name for device in placement.devices(target)] == [H100.name]
    assert any("Tesla V100-SXM2-16GB has compute capability 7.0" in line for line in told)
    assert placement.agent_environment(target)["CUDA_VISIBLE_DEVICES"] == "1"
    told.clear()
    placement.devices(target)
    assert told == []  # once


def test_what_is_missing_and_odd_is_said_once_before_the_start(
    answer: Answer, build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer(MACHINES["H100"])
    target = build("12.4")
    lost = dataclasses.replace(H100, number=0xA2, errors={"nvmlDeviceGetUUID": 15})
    answer(Machine((dataclasses.replace(H100, mode=3), lost)))
    told: list[str] = []
    Placement(told.append, {"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)}).devices(target)
    said = "\n".join(told)
    for words in (
        "GPU 1: NVML: GPU is lost",
        "GPU 0 (NVIDIA H100 80GB HBM3) is in compute mode exclusive process: one engine at a time.",
        "There is no C compiler on PATH",
        "There is no nvcc",
    ):
        assert said.count(words) == 1, said
