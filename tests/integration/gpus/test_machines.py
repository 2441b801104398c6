"""Usable devices, leases and preflight results on various machines, with simulated answers of NVML."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.audit.preflight import inspect_host, preflight
from pytest_vllm_regress.engines.gpus.leases import GpuLease, GpuLeases
from pytest_vllm_regress.engines.gpus.visible import usable
from pytest_vllm_regress.environments.installed import Interpreter
from pytest_vllm_regress.errors import DeviceBusy, UsageError
from pytest_vllm_regress.util.deadline import Deadline
from tests.helpers.fake_gpus import A100, GIB, H100, MACHINES, Machine

from .conftest import Answer

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


@dataclasses.dataclass(frozen=True)
class Expected:
    """``lease`` is CUDA_VISIBLE_DEVICES of the first engine, ``words`` are in the error otherwise;
    ``checks`` are failed preflight checks."""

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
    Expected(
        "H100",
        environ={VISIBLE: "NoDevFiles"},
        words="CUDA_VISIBLE_DEVICES='NoDevFiles' hides every GPU",
    ),
    Expected(
        "H100", environ={VISIBLE: "3"}, words=r"NVML: 1 GPUs, 0 \(NVIDIA H100.*CUDA stops at '3'"
    ),
    Expected("H100", environ={VISIBLE: "MIG-1"}, words="CUDA stops at 'MIG-1', which names no GPU"),
    Expected("T4", "0"),
    Expected("8 alike", "0"),
    Expected("8 alike", "5", {VISIBLE: "5,2"}),
    Expected("8 alike", "0", {VISIBLE: "0,9,1"}, note="CUDA stops at '9'"),
    Expected("mixed order", "0"),
    Expected("mixed order", "1", {VISIBLE: "1", ORDER: "PCI_BUS_ID"}),
    Expected("mixed order", "1", {VISIBLE: H100.uuid}),
    Expected(
        "mixed order", environ={VISIBLE: "0"}, words="is ambiguous: .*0 Tesla T4, 1 NVIDIA H100"
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
        "prohibited",
        words=r"GPU 0 \(NVIDIA H100 80GB HBM3\) is in compute mode prohibited",
        checks=("compute-mode",),
    ),
    Expected("exclusive", "0"),
]


@pytest.mark.parametrize("expected", EXPECTED, ids=str)
def test_usable_and_leased_devices(
    expected: Expected, answer: Answer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer(MACHINES[expected.machine])
    for name, value in expected.environ.items():
        monkeypatch.setenv(name, value)
    if not expected.lease:
        with pytest.raises(UsageError, match=expected.words):
            usable()
        return
    usable_devices = usable()
    assert bool(usable_devices.broken) == bool(expected.note)
    assert expected.note in "".join(usable_devices.broken)
    lease = take(tmp_path, usable_devices.gpus)
    assert lease.environment == {ORDER: "PCI_BUS_ID", VISIBLE: expected.lease}
    lease.claim([1])
    assert lease.release(Deadline.after("stop", 60)) == ()


def test_memory_of_others_is_not_waited_for(answer: Answer, tmp_path: Path) -> None:
    """Memory of other tenants, or of the operating system of a GH200 on the GPU's NUMA node, is not
    the engine's."""
    (card,) = MACHINES["GH200"].cards
    answer(MACHINES["GH200"])
    lease = take(tmp_path, usable().gpus, same_pids=True)
    tenant = 1  # alive, and not one of our processes
    answer(
        Machine(
            (dataclasses.replace(card, used=card.used + 20 * GIB, processes=((tenant, 5 * GIB),)),)
        )
    )
    deadline = Deadline.after("stop", 60)
    assert lease.release(deadline) == ()
    assert deadline.left_s > 50


def test_a_tenant_leaves_enough_memory_or_is_reported(answer: Answer, tmp_path: Path) -> None:
    answer(Machine((dataclasses.replace(H100, used=20 * GIB, processes=((1, 20 * GIB),)),)))
    take(tmp_path, usable().gpus).release(Deadline.after("stop", 60))
    answer(Machine((dataclasses.replace(H100, used=78 * GIB, processes=((1, 78 * GIB),)),)))
    with pytest.raises(DeviceBusy, match=r"GPU 0: 1\.6 GiB free, 4\.0 needed; process 1 \("):
        take(tmp_path, usable().gpus, same_pids=True)
    with pytest.raises(DeviceBusy, match="processes of another pid namespace"):
        take(tmp_path, usable().gpus, same_pids=False)


@pytest.mark.parametrize("expected", [row for row in EXPECTED if not row.environ], ids=str)
def test_the_preflight(expected: Expected, answer: Answer, site: Path) -> None:
    answer(MACHINES[expected.machine])
    host = dataclasses.replace(inspect_host(), environ={"PATH": str(site)}, raylets=())
    concerns = preflight(
        Interpreter(site / "bin" / "python3.11", "3.11.7", "x86_64", "cpython", (site,)), host
    )
    wrong = {concern.id for concern in concerns if concern.counts} - {"no-compiler"}
    assert wrong == set(expected.checks)
    if expected.machine == "none":
        (concern,) = concerns
        assert concern.id == "no-driver"
        assert re.search(expected.words, concern.detail)
    else:
        assert "no-compiler" in {concern.id for concern in concerns}


@pytest.mark.parametrize(
    ("machine", "cuda", "check"),
    [
        ("T4", "13.0", "old-driver"),
        ("H100", "13.2", "older-driver"),
        ("WSL", "11.0", "gpu-too-new"),
    ],
)
def test_a_build_that_the_machine_does_not_support(
    machine: str, cuda: str, check: str, answer: Answer, site: Path
) -> None:
    (site / "torch" / "version.py").write_text(f"cuda: Optional[str] = '{cuda}'\n")
    answer(MACHINES[machine])
    concerns = preflight(
        Interpreter(site / "bin" / "python3.11", "3.11.7", "x86_64", "cpython", (site,)),
        inspect_host(),
    )
    assert check in {concern.id for concern in concerns}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return an interpreter with headers and CUDA builds of vLLM and torch."""
    for name, version in (("vllm", "0.11.2"), ("torch", "2.9.0")):
        place = tmp_path / "site" / f"{name}-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    (tmp_path / "site" / "torch").mkdir()
    (tmp_path / "site" / "torch" / "version.py").write_text("cuda: Optional[str] = '12.4'\n")
    (tmp_path / "site" / "include" / "python3.11").mkdir(parents=True)
    (tmp_path / "site" / "include" / "python3.11" / "Python.h").touch()
    return tmp_path / "site"


def take(folder: Path, devices: object, same_pids: bool = False) -> GpuLease:
    assert isinstance(devices, tuple)
    leases = GpuLeases(folder / "locks", same_pids=same_pids)
    return leases.lease(devices, 1, lambda device: 4 * GIB, Deadline.after("start", 0))
