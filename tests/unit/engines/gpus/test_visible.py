"""CUDA_VISIBLE_DEVICES is interpreted as by CUDA, on simulated machines."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.engines.gpus.nvml import Gpu, Machine
from pytest_vllm_regress.engines.gpus.visible import select_devices
from pytest_vllm_regress.errors import UsageError

H100, T4 = "NVIDIA H100", "Tesla T4"


def machine(*names: str) -> Machine:
    gpus = tuple(
        Gpu(index, name, 80 * 2**30, f"GPU-{index}{index}-abc", (9, 0))
        for index, name in enumerate(names)
    )
    return Machine("580", (13, 0), gpus)


MIG = Machine(
    "580",
    (13, 0),
    (
        Gpu(
            0,
            "A100",
            80,
            "GPU-00",
            (8, 0),
            mig=True,
            slices=tuple(Gpu(0, "s", 10, f"MIG-{n}", (8, 0), part=True) for n in (1, 2)),
        ),
        Gpu(1, "A100", 80, "GPU-11", (8, 0), mig=True),
    ),
)


@pytest.mark.parametrize(
    ("setting", "indices", "note"),
    [
        (None, [0, 1, 2], ""),
        ("1", [1], ""),
        ("2,0", [2, 0], ""),
        (" 0 , 1 ", [0, 1], ""),
        ("0,7,1", [0], "CUDA stops at '7'"),
        ("7", [], "CUDA stops at '7'"),
        ("0,-1,1", [0], "CUDA stops at '-1'"),
        ("0,0", [], "is listed twice"),
        ("", [], ""),
        ("-1", [], ""),
        ("NoDevFiles", [], ""),
        ("GPU-11-abc", [1], ""),
        ("GPU-2,GPU-0", [2, 0], ""),
        ("GPU-", [], "CUDA stops at 'GPU-'"),
        ("GPU-11,GPU-11-abc", [], "is listed twice"),
        ("GPU-11,GPU-99,GPU-00", [1], "CUDA stops at 'GPU-99'"),
        ("MIG-1", [], "CUDA stops at 'MIG-1'"),
    ],
)
def test_numbers_and_uuids(setting: str | None, indices: list[int], note: str) -> None:
    devices, notes = select_devices(machine(H100, H100, H100), setting, None)
    assert [device.index for device in devices] == indices
    assert [note in text for text in notes] == [True] * bool(note)


def test_an_ambiguous_uuid_prefix_selects_nothing() -> None:
    twins = Machine("1", (12, 0), (Gpu(0, "x", 1, "GPU-aa1"), Gpu(1, "x", 1, "GPU-aa2")))
    assert select_devices(twins, "GPU-aa", None) == (
        [],
        ["CUDA_VISIBLE_DEVICES=GPU-aa: GPU-aa matches several GPUs, and CUDA then shows no GPU"],
    )


@pytest.mark.parametrize(
    ("setting", "selectors"),
    [
        (None, ["MIG-1", "MIG-2"]),
        ("0", ["MIG-1"]),
        ("MIG-2", ["MIG-2"]),
        ("GPU-00", []),
        ("MIG-3", []),
    ],
)
def test_slices(setting: str | None, selectors: list[str]) -> None:
    assert [device.selector for device in select_devices(MIG, setting, None)[0]] == selectors


def test_mig_mode_without_a_slice_is_reported() -> None:
    assert select_devices(MIG, "1", None) == ([], ["GPU 1 (A100) is in MIG mode and has no slice"])


def test_indices_of_different_gpus_need_an_order() -> None:
    mixed = machine(T4, H100)
    with pytest.raises(
        UsageError,
        match=r"is ambiguous: .*0 Tesla T4, 1 NVIDIA H100.*Set CUDA_DEVICE_ORDER=PCI_BUS_ID",
    ):
        select_devices(mixed, "1", None)
    assert [device.name for device in select_devices(mixed, "1", "PCI_BUS_ID")[0]] == [H100]
    assert [device.name for device in select_devices(mixed, "GPU-11", None)[0]] == [H100]
    assert [device.name for device in select_devices(mixed, None, None)[0]] == [T4, H100]


def test_mig_devices_of_one_gpu_are_told_apart() -> None:
    parts = [Gpu(0, "NVIDIA A100 MIG 1g.10gb", 10, f"MIG-{n}", part=True) for n in range(3)]
    assert len({device.describe() for device in parts}) == 3
