"""NVML queries, against a library that answers like NVML or fails at any call."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess

import pytest

from pytest_vllm_regress.engines.gpus.nvml import (
    Gpu,
    Machine,
    Usage,
    query_machine,
    usage,
)
from tests.helpers import fake_gpus
from tests.helpers.fake_gpus import (
    A100,
    GIB,
    GPU_IS_LOST,
    H100,
    MACHINES,
    NO_PERMISSION,
    NOT_SUPPORTED,
    T4,
)

from .conftest import Answer

FUNCTIONS = sorted(
    set(re.findall(r"^Result (nvml\w+)\(", (fake_gpus.HERE / "nvml.c").read_text(), re.M))
)


def test_gpus_driver_and_slices(answer: Answer) -> None:
    answer(MACHINES["mixed order"])
    assert query_machine() == Machine(
        "580.95.05",
        (13, 0),
        (
            Gpu(0, T4.name, T4.total, T4.uuid, (7, 5)),
            Gpu(1, H100.name, H100.total, H100.uuid, (9, 0)),
        ),
    )
    answer(MACHINES["MIG"])
    machine = query_machine()
    assert isinstance(machine, Machine)
    assert machine.gpus[0].slices == tuple(
        Gpu(0, f"{A100.name} MIG", size * GIB, A100.slice_uuid(n), (8, 0), part=True)
        for n, size in enumerate((10, 10, 20))
    )


def test_memory_and_its_holders(answer: Answer) -> None:
    pid = os.getpid()
    answer(
        fake_gpus.Machine(
            (dataclasses.replace(H100, used=3 * GIB, processes=((pid, 2 * GIB), (9, GIB))),)
        )
    )
    assert usage(H100.uuid) == Usage(3 * GIB, H100.total - 3 * GIB, {pid: 2 * GIB, 9: GIB})
    answer(fake_gpus.Machine((H100,)))
    assert usage(H100.uuid) == Usage(H100.used, H100.total - H100.used, {})
    answer(MACHINES["MIG"])
    assert usage(A100.slice_uuid(1)) == Usage(2**24, 10 * GIB - 2**24, {})


def test_a_process_that_has_ended_holds_no_memory_of_the_stand_in(answer: Answer) -> None:
    answer(MACHINES["H100"])
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        with open(os.environ["FAKE_NVML"], "a") as answers:
            answers.write(f"gpu0.living {process.pid} {GIB}\n")
        assert usage(H100.uuid) == Usage(
            H100.used + GIB, H100.total - H100.used - GIB, {process.pid: GIB}
        )
        process.kill()
        os.waitid(
            os.P_PID, process.pid, os.WEXITED | os.WNOWAIT
        )  # it has ended, and nobody has waited for it yet
        assert usage(H100.uuid) == Usage(H100.used, H100.total - H100.used, {})


def test_unreported_memory_is_unknown_and_not_zero(answer: Answer) -> None:
    hidden = dataclasses.replace(H100, processes=((7, 2**64 - 1),))  # NVML_VALUE_NOT_AVAILABLE
    for machine in (
        MACHINES["WSL"],
        MACHINES["container without permission"],
        fake_gpus.Machine((hidden,)),
    ):
        answer(machine)
        now = usage(machine.cards[0].uuid)
        assert isinstance(now, Usage)
        assert now.holders is None


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, 21])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_error_of_any_call_is_returned_as_text(answer: Answer, function: str, code: int) -> None:
    answer(dataclasses.replace(MACHINES["MIG"], errors={function: code}))
    machine, now = query_machine(), usage(A100.slice_uuid(0))
    assert isinstance(machine, Machine) or "NVML" in machine
    assert isinstance(now, Usage) or "NVML" in now


def test_shutdown_does_not_hide_an_earlier_error(answer: Answer) -> None:
    answer(
        dataclasses.replace(
            MACHINES["H100"], errors={"nvmlDeviceGetCount_v2": NO_PERMISSION, "nvmlShutdown": 1}
        )
    )
    assert query_machine() == "NVML failed: Insufficient Permissions"
    answer(dataclasses.replace(MACHINES["H100"], errors={"nvmlShutdown": 1}))
    assert isinstance(query_machine(), Machine)


def test_a_lost_gpu_does_not_hide_the_others(answer: Answer) -> None:
    answer(MACHINES["lost"])
    machine = query_machine()
    assert isinstance(machine, Machine)
    assert [gpu.index for gpu in machine.gpus] == [0]
    assert machine.broken == ("GPU 1: NVML: GPU is lost",)


def test_no_driver(answer: Answer) -> None:
    answer(MACHINES["none"])
    assert str(query_machine()).startswith(
        "NVML, the NVIDIA driver's management library: Driver Not Loaded; devices /dev/nvidia*: "
    )
