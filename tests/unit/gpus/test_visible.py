"""CUDA_VISIBLE_DEVICES as CUDA reads it, on machines made up for it."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.gpus.nvml import Gpu, Machine, Slice
from pytest_vllm_regress.gpus.visible import cut

H100, T4 = "NVIDIA H100", "Tesla T4"


def machine(*names: str) -> Machine:
    gpus = tuple(Gpu(index, name, 80 * 2**30, f"GPU-{index}{index}-abc", (9, 0)) for index, name in enumerate(names))
    return Machine("580", (13, 0), gpus)


MIG = Machine(
    "580",
    (13, 0),
    (
        Gpu(0, "A100", 80, "GPU-00", (8, 0), mig=True, slices=(Slice("MIG-1", "s", 10), Slice("MIG-2", "s", 10))),
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
        ("0,0", [], "stands there twice"),
        ("", [], ""),
        ("-1", [], ""),
        ("NoDevFiles", [], ""),
        ("GPU-11-abc", [1], ""),
        ("GPU-2,GPU-0", [2, 0], ""),
        ("GPU-", [], "CUDA stops at 'GPU-'"),
        ("GPU-11,GPU-11-abc", [], "stands there twice"),
        ("GPU-11,GPU-99,GPU-00", [1], "CUDA stops at 'GPU-99'"),
        ("MIG-1", [], "CUDA stops at 'MIG-1'"),
    ],
)
def test_numbers_and_uuids(setting: str | None, indices: list[int], note: str) -> None:
    devices, notes = cut(machine(H100, H100, H100), setting, None)
    assert [device.index for device in devices] == indices
    assert [note in each for each in notes] == [True] * bool(note)


def test_a_short_uuid_that_fits_two() -> None:
    twins = Machine("1", (12, 0), (Gpu(0, "x", 1, "GPU-aa1"), Gpu(1, "x", 1, "GPU-aa2")))
    assert cut(twins, "GPU-aa", None) == (
        [],
        ["CUDA_VISIBLE_DEVICES=GPU-aa: GPU-aa fits several GPUs, and CUDA then shows no GPU"],
    )


@pytest.mark.parametrize(
    ("setting", "selectors"),
    [(None, ["MIG-1", "MIG-2"]), ("0", ["MIG-1"]), ("MIG-2", ["MIG-2"]), ("GPU-00", []), ("MIG-3", [])],
)
def test_slices(setting: str | None, selectors: list[str]) -> None:
    assert [device.selector for device in cut(MIG, setting, None)[0]] == selectors


def test_mig_mode_without_a_slice_is_said() -> None:
    assert cut(MIG, "1", None) == ([], ["GPU 1 (A100) is in MIG mode and has no slice"])


def test_numbers_of_gpus_that_differ_need_an_order() -> None:
    mixed = machine(T4, H100)
    with pytest.raises(
        UsageError, match=r"may mean other GPUs .*0 Tesla T4, 1 NVIDIA H100.*Set CUDA_DEVICE_ORDER=PCI_BUS_ID"
    ):
        cut(mixed, "1", None)
    assert [device.name for device in cut(mixed, "1", "PCI_BUS_ID")[0]] == [H100]
    assert [device.name for device in cut(mixed, "GPU-11", None)[0]] == [H100]
    assert [device.name for device in cut(mixed, None, None)[0]] == [T4, H100]
