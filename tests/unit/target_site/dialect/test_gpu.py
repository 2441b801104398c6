"""GPU arguments for each vLLM. Its sources and fields imitate 0.8.5, 0.9.2, 0.11.2 and 0.33.0."""

from __future__ import annotations

import platform
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import gpu

GIB = 2**30
OLD = {"gpu_memory_utilization", "num_gpu_blocks_override"}
NEW = {*OLD, "kv_cache_memory_bytes"}
SUBTRACTS, COMPARES = (
    "total_gpu_memory * utilization - peak_memory",
    "self.requested_memory = total",
)
NUMBERS, UUIDS = (
    "return int(physical_device_id)",
    "handle = pynvml.nvmlDeviceGetHandleByUUID(device_id)",
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``installed(worker, platform)``: set the texts of vLLM's sources."""

    def write(worker: str = COMPARES, cuda: str = UUIDS) -> None:
        monkeypatch.setattr(gpu, "version", lambda: "1.0")
        monkeypatch.setattr(
            gpu, "source_of", lambda *parts: worker if parts[-1] == "gpu_worker.py" else cuda
        )

    write()
    return write


def device(**changes: Any) -> dict[str, Any]:
    return {
        "name": "H100",
        "memory": 80 * GIB,
        "used": 0,
        "capability": [9, 0],
        "part": False,
        **changes,
    }


def plan(
    fields: set[str], *devices: dict[str, Any], tiny: bool = True, **named: Any
) -> tuple[dict[str, Any], list[str]]:
    kwargs, notes = dict(named), list[str]()
    about = {"devices": list(devices), "tiny": tiny, "needed": 4 * GIB, "cache": GIB // 4}
    gpu.plan({"gpu": about, "max_model_len": 512}, fields, kwargs, notes)
    return kwargs, notes


def test_a_forged_model_gets_a_small_cache_and_share(installed: Any) -> None:
    assert plan(NEW, device())[0] == {
        "kv_cache_memory_bytes": GIB // 4,
        "gpu_memory_utilization": 0.05,
    }
    assert plan(OLD, device())[0] == {
        "num_gpu_blocks_override": 4096,
        "gpu_memory_utilization": 0.05,
    }
    assert plan(set(), device())[0] == {"gpu_memory_utilization": 0.05}


def test_the_share_includes_other_processes_if_vllm_counts_them(installed: Any) -> None:
    """V1 before 0.9.1 subtracts the memory of other processes from its share; later versions
    compare the share with free memory."""
    assert plan(OLD, device(used=20 * GIB))[0]["gpu_memory_utilization"] == 0.05
    installed(worker=SUBTRACTS)
    assert plan(OLD, device(used=20 * GIB))[0]["gpu_memory_utilization"] == 0.3
    installed(worker="")  # no V1 at all
    assert plan(OLD, device(used=20 * GIB))[0]["gpu_memory_utilization"] == 0.05


def test_the_smallest_of_several_gpus_determines_the_share(installed: Any) -> None:
    assert plan(NEW, device(), device(memory=16 * GIB))[0]["gpu_memory_utilization"] == 0.25


def test_arguments_of_the_spec_are_kept(installed: Any) -> None:
    assert plan(NEW, device(), gpu_memory_utilization=0.5)[0] == {"gpu_memory_utilization": 0.5}
    assert plan(NEW, device(), kv_cache_memory_bytes=7)[0]["kv_cache_memory_bytes"] == 7
    assert plan(NEW, device(), tiny=False)[0] == {}  # a real model: vLLM's own default


def test_float16_replaces_bfloat16_on_old_gpus(installed: Any) -> None:
    t4 = device(name="Tesla T4", capability=[7, 5], memory=15 * GIB)
    kwargs, notes = plan(NEW, t4)
    assert kwargs["dtype"] == "float16"
    assert notes == ["float16: Tesla T4 has no bfloat16 (compute capability below 8.0)"]
    assert plan(NEW, t4, dtype="float32")[0]["dtype"] == "float32"
    assert "dtype" not in plan(NEW, device(capability=[8, 0]))[0]
    assert "dtype" not in plan(NEW, device(capability=None))[0]


def test_a_mig_slice_needs_a_vllm_that_accepts_uuids(installed: Any) -> None:
    assert plan(NEW, device(part=True))[0]
    installed(cuda=NUMBERS)
    assert plan(NEW, device())[0]
    with pytest.raises(
        Unsupported, match="takes only numbers in CUDA_VISIBLE_DEVICES, and a MIG slice has none"
    ):
        plan(NEW, device(part=True))


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("ValueError: No valid attention backend found for cuda with head_size=32", True),
        (
            "NotImplementedError: VLLM_USE_V1=1 is not supported with Compute Capability < 8.0.",
            True,
        ),
        (
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0",
            True,
        ),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            True,
        ),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
        ("INFO: No valid attention backend found", False),
    ],
)
def test_rejections_by_other_processes_are_read_from_the_log(
    line: str, refused: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    import sys

    print(f"(EngineCore pid=1) {line}", file=sys.stderr)
    assert gpu.refusal_in_own_log() == (line.partition(": ")[2] if refused else None)
    capfd.readouterr()


def test_on_wsl_children_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.why_not_to_fork() is None
    release = "5.15.153.1-microsoft-standard-WSL2"
    monkeypatch.setattr(platform, "uname", lambda: SimpleNamespace(release=release))
    assert str(gpu.why_not_to_fork()).startswith("WSL: ")


@pytest.mark.parametrize(("bad", "why"), [(True, "importing vLLM initialized CUDA"), (False, None)])
def test_a_fork_tests_whether_cuda_works(
    bad: bool, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    torch = SimpleNamespace(cuda=SimpleNamespace(_is_in_bad_fork=lambda: bad))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert gpu.why_not_to_fork() == why


def test_a_fork_that_fails_means_spawning(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert gpu.why_not_to_fork() == "a forked process could not be asked about CUDA"


def test_cached_facts_about_gpus_are_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    import functools
    import sys

    numbers: list[int] = []

    class Base:
        @classmethod
        @functools.cache
        def capability(cls, number: int = 0) -> int:
            numbers.append(number)
            return len(numbers)

    class Cuda(Base):
        pass

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=Cuda()))
    assert (Cuda.capability(), Cuda.capability()) == (1, 1)
    gpu.forget_devices()
    assert Cuda.capability() == 2
