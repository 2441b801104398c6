"""Kinds of machines, by made-up answers of NVML: what may be used, what is leased, what the preflight says."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_vllm_regress.audit.preflight import look_around, preflight
from pytest_vllm_regress.environments.installed import Interpreter
from pytest_vllm_regress.errors import DeviceBusy, UsageError
from pytest_vllm_regress.gpus.leases import GpuLease, GpuLeases
from pytest_vllm_regress.gpus.visible import usable
from pytest_vllm_regress.util.deadline import Deadline
from tests.helpers.gpu_standins import A100, GIB, H100, MACHINES, Machine

from .conftest import Answer

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


@dataclasses.dataclass(frozen=True)
class Expected:
    """``lease``: CUDA_VISIBLE_DEVICES of the first engine, ``words`` in the error where there is none; ``checks`` of the preflight that count."""

    machine: str
    lease: str = ""
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    words: str = ""
    note: str = ""
    checks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.machine.replace(" ", "-"), *self.environ.values()])


EXPECTED = [
    Expected("H100", "0"),
    Expected("H100", "0", {VISIBLE: H100.uuid}),
    Expected("H100", "0", {VISIBLE: H100.uuid[:10]}),
    Expected("H100", environ={VISIBLE: ""}, words="CUDA_VISIBLE_DEVICES='' hides every GPU"),
    Expected("H100", environ={VISIBLE: "NoDevFiles"}, words="CUDA_VISIBLE_DEVICES='NoDevFiles' hides every GPU"),
    Expected("H100", environ={VISIBLE: "3"}, words=r"NVML: 1 GPUs, 0 \(NVIDIA H100.*CUDA stops at '3'"),
    Expected("H100", environ={VISIBLE: "MIG-1"}, words="CUDA stops at 'MIG-1', which names no GPU"),
    Expected("T4", "0"),
    Expected("8 alike", "0"),
    Expected("8 alike", "5", {VISIBLE: "5,2"}),
    Expected("8 alike", "0", {VISIBLE: "0,9,1"}, note="CUDA stops at '9'"),
    Expected("mixed order", "0"),
    Expected("mixed order", "1", {VISIBLE: "1", ORDER: "PCI_BUS_ID"}),
    Expected("mixed order", "1", {VISIBLE: H100.uuid}),
    Expected(
        "mixed order", environ={VISIBLE: "0"}, words="may mean other GPUs than it seems to: .*0 Tesla T4, 1 NVIDIA H100"
    ),
    Expected("MIG", A100.slice_uuid(0)),
    Expected("MIG", A100.slice_uuid(2), {VISIBLE: A100.slice_uuid(2)}),
    Expected("MIG", environ={VISIBLE: A100.uuid}, words="CUDA stops at 'GPU-"),
    Expected("GH200", "0"),
    Expected("WSL", "0"),
    Expected("none", words=r"Driver Not Loaded; devices /dev/nvidia\*: "),
    Expected(
        "none",
        environ={"NVIDIA_VISIBLE_DEVICES": "void"},
        words=r"this container was started without GPUs \(`--gpus all`",
    ),
    Expected("lost", "0", note="GPU 1: NVML: GPU is lost", checks=("gpu-broken",)),
    Expected(
        "prohibited", words=r"GPU 0 \(NVIDIA H100 80GB HBM3\) is in compute mode prohibited", checks=("compute-mode",)
    ),
    Expected("exclusive", "0"),
]


@pytest.mark.parametrize("expected", EXPECTED, ids=str)
def test_what_may_be_used_and_is_leased(
    expected: Expected, answer: Answer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer(MACHINES[expected.machine])
    for name, value in expected.environ.items():
        monkeypatch.setenv(name, value)
    if not expected.lease:
        with pytest.raises(UsageError, match=expected.words):
            usable()
        return
    found = usable()
    assert bool(found.notes) == bool(expected.note)
    assert expected.note in "".join(found.notes)
    lease = take(tmp_path, found.devices)
    assert lease.environment == {ORDER: "PCI_BUS_ID", VISIBLE: expected.lease}
    lease.claim([1])
    assert lease.release(Deadline.after("stop", 1)) == ()


def test_memory_that_grows_by_others_is_not_waited_for(answer: Answer, tmp_path: Path) -> None:
    """GH200's operating system takes memory of the GPU's NUMA node, other tenants theirs: neither is an engine's."""
    (card,) = MACHINES["GH200"].cards
    answer(MACHINES["GH200"])
    lease = take(tmp_path, usable().devices, same_pids=True)
    tenant = 1  # lives, and is not ours
    answer(Machine((dataclasses.replace(card, used=card.used + 20 * GIB, processes=((tenant, 5 * GIB),)),)))
    deadline = Deadline.after("stop", 60)
    assert lease.release(deadline) == ()
    assert deadline.left_s > 50


def test_a_tenant_leaves_an_engine_room_or_is_said(answer: Answer, tmp_path: Path) -> None:
    answer(Machine((dataclasses.replace(H100, used=20 * GIB, processes=((1, 20 * GIB),)),)))
    take(tmp_path, usable().devices).release(Deadline.after("stop", 1))
    answer(Machine((dataclasses.replace(H100, used=78 * GIB, processes=((1, 78 * GIB),)),)))
    with pytest.raises(DeviceBusy, match=r"GPU 0: 1\.6 GiB free, 4\.0 needed; process 1 \("):
        take(tmp_path, usable().devices, same_pids=True)
    with pytest.raises(DeviceBusy, match="not named: pids are of another namespace"):
        take(tmp_path, usable().devices, same_pids=False)


@pytest.mark.parametrize("expected", [each for each in EXPECTED if not each.environ], ids=str)
def test_the_preflight(expected: Expected, answer: Answer, site: Path) -> None:
    answer(MACHINES[expected.machine])
    around = dataclasses.replace(look_around(), environ={"PATH": str(site)}, raylets=())
    found = preflight(Interpreter(site / "bin" / "python3.11", "3.11.7", "x86_64", "cpython", (site,)), around)
    wrong = {each.id for each in found if each.counts} - {"no-compiler"}
    assert wrong == set(expected.checks)
    if expected.machine == "none":
        (concern,) = found
        assert concern.id == "no-driver"
        assert re.search(expected.words, concern.found)
    else:
        assert "no-compiler" in {each.id for each in found}


@pytest.mark.parametrize(
    ("machine", "cuda", "check"),
    [("T4", "13.0", "old-driver"), ("H100", "13.2", "older-driver"), ("WSL", "11.0", "gpu-too-new")],
)
def test_a_build_that_the_machine_does_not_serve(
    machine: str, cuda: str, check: str, answer: Answer, site: Path
) -> None:
    (site / "torch" / "version.py").write_text(f"cuda: Optional[str] = '{cuda}'\n")
    answer(MACHINES[machine])
    found = preflight(Interpreter(site / "bin" / "python3.11", "3.11.7", "x86_64", "cpython", (site,)), look_around())
    assert check in {each.id for each in found}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An interpreter's packages: a CUDA build of vLLM and of torch; its headers are there."""
    for name, version in (("vllm", "0.11.2"), ("torch", "2.9.0")):
        place = tmp_path / "site" / f"{name}-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (tmp_path / "site" / "torch").mkdir()
    (tmp_path / "site" / "torch" / "version.py").write_text("cuda: Optional[str] = '12.4'\n")
    (tmp_path / "site" / "include" / "python3.11").mkdir(parents=True)
    (tmp_path / "site" / "include" / "python3.11" / "Python.h").touch()
    return tmp_path / "site"


def take(folder: Path, devices: object, same_pids: bool = False) -> GpuLease:
    assert isinstance(devices, tuple)
    leases = GpuLeases(folder / "locks", same_pids=same_pids)
    return leases.lease(devices, 1, lambda device: 4 * GIB, Deadline.after("start", 0))
