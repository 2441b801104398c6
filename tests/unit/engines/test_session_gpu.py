"""The session on GPUs, with stand-ins for agents and NVML: which engine gets a GPU, which one is
stopped for it, and what an engine receives."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from pytest_vllm_regress.engines import placement, server, session
from pytest_vllm_regress.engines.agents import Agents
from pytest_vllm_regress.engines.engine import Engine
from pytest_vllm_regress.engines.gpus import compiled, nvml
from pytest_vllm_regress.engines.gpus.leases import GpuLeases
from pytest_vllm_regress.engines.gpus.nvml import Gpu, Usage
from pytest_vllm_regress.engines.processes.child_processes import Leftover
from pytest_vllm_regress.engines.running import Launch
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.engines.target import Target
from pytest_vllm_regress.environments.installed import Installed
from pytest_vllm_regress.errors import ChildDied, DeviceBusy, Unsupported
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.sizes import GIB

TARGET = Target(
    "vllm-0.11.2",
    Path("/x/bin/python"),
    "gpu",
    Installed("/x", "3.11", MappingProxyType({"vllm": "0.11.2"})),
)
ONE, OTHER = EngineSpec(seed=1), EngineSpec(seed=2)


class FakeChild:
    """An engine that holds memory on its GPUs until it ends."""

    def __init__(
        self, machine: FakeMachine, role: str, environment: Mapping[str, str], deadline: Deadline
    ) -> None:
        self.role, self.environment, self.deadline = role, dict(environment), deadline
        self.name = f"{role} 1"
        self.machine, self.start_method = machine, "fork"
        self.spec: dict[str, Any] = {}
        self.release: Callable[[], tuple[Leftover, ...]] | None = None
        self.log = machine.folder / "log"
        self.alive = True
        machine.children.append(self)

    def request(self, operation: str, deadline: Deadline, **arguments: Any) -> Any:
        if operation == "start":
            if self.machine.broken:
                raise ChildDied("it died", phase="start")
            self.spec, self.start_deadline = arguments["spec"], deadline
            self.machine.used[self.environment["CUDA_VISIBLE_DEVICES"]] += 4 * GIB
            return {"kwargs": {}, "env": {}, "notes": [], "generation": "V1"}
        return [{}]

    def processes(self) -> list[Any]:
        return []

    def stop(self, deadline: Deadline) -> tuple[Leftover, ...]:
        if self.spec:
            self.machine.used[self.environment["CUDA_VISIBLE_DEVICES"]] -= 4 * GIB
        self.kill()
        return ()

    def adopt_engine(self) -> None:
        pass

    def note_shared_memory(self) -> None:
        pass

    def kill(self) -> None:
        self.alive = False
        if self.release is not None:
            self.release()

    def at_end(self, release: Callable[[], tuple[Leftover, ...]]) -> None:
        self.release = release


@dataclasses.dataclass
class FakeMachine:
    """GPUs of ``size`` bytes, and an agent."""

    folder: Path
    size: int = 80 * GIB
    broken: bool = False
    gpu_share: float = 0.9
    import_error = refusal = None
    used: dict[str, int] = dataclasses.field(default_factory=lambda: {"0": 0})
    children: list[FakeChild] = dataclasses.field(default_factory=list)
    messages: list[str] = dataclasses.field(default_factory=list)

    def look(self, uuid: str) -> Usage:
        used = self.used[uuid.removeprefix("GPU-")]
        return Usage(used, self.size - used, {})

    @property
    def devices(self) -> tuple[Gpu, ...]:
        return tuple(Gpu(int(n), "stand-in", self.size, f"GPU-{n}", (9, 0)) for n in self.used)

    def inspect(self, deadline: Deadline, *, architectures: Sequence[str]) -> None:
        pass

    def start_child(
        self, role: str, deadline: Deadline, *, environment: Mapping[str, str], **rest: Any
    ) -> FakeChild:
        return FakeChild(self, role, environment, deadline)

    def stop(self) -> None:
        pass


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    monkeypatch.setattr(compiled, "writable_root", lambda: tmp_path)
    return FakeMachine(tmp_path)


@pytest.fixture
def run(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """Return a function that makes a session on the machine."""

    def start(on_waited: Callable[[], None] = lambda: None, **settings: Any) -> Session:
        new_session = Session(
            Settings(**{"gpu_wait_s": 0.3, **settings}),
            lambda phase, seconds: Deadline.after(phase, 20 if seconds is None else seconds),
            machine.messages.append,
            on_waited=on_waited,
        )
        leases = GpuLeases(
            machine.folder / "locks",
            query_usage=machine.look,
            report=machine.messages.append,
            same_pids=True,
        )
        new_session.gpus = placement.Placement(machine.messages.append, leases=leases)
        new_session.gpus.__dict__["visible"] = nvml.Machine("580", (13, 0), machine.devices)
        monkeypatch.setattr(placement.Placement, "devices", lambda self, target: machine.devices)
        monkeypatch.setattr(Agents, "warm", lambda self, target: machine)
        monkeypatch.setattr(session, "unmet_needs", lambda model, versions: ())
        return new_session

    return start


def engine(run: Session, spec: EngineSpec, user: str, *, fresh: bool = False) -> Engine:
    running: Engine = run.start("offline", TARGET, spec, user=user, fresh=fresh)
    return running


def test_two_small_engines_on_one_gpu(machine: FakeMachine, run: Callable[..., Session]) -> None:
    session = run()
    engine(session, ONE, "t1")
    engine(session, OTHER, "t2")
    assert [child.alive for child in machine.children] == [True, True]
    assert [child.environment["CUDA_VISIBLE_DEVICES"] for child in machine.children] == ["0", "0"]
    session.close()
    assert engine(run(), ONE, "t3").child.alive


def test_a_second_spec_does_not_wait_for_the_first(
    machine: FakeMachine, run: Callable[..., Session]
) -> None:
    """On a GPU with room for one engine the idle one ends at once; the run does not wait for
    itself."""
    machine.size = 6 * GIB
    session = run(gpu_wait_s=60)
    engine(session, ONE, "t1")
    before = Deadline.after("start", 60)
    engine(session, OTHER, "t2")
    assert before.left_s > 50
    assert [child.alive for child in machine.children] == [False, True]
    assert machine.messages == []


def test_engines_that_a_test_uses_itself_stay(
    machine: FakeMachine, run: Callable[..., Session]
) -> None:
    machine.size = 6 * GIB
    session = run()
    engine(session, ONE, "t1")
    with pytest.raises(DeviceBusy, match=r"waited 0\.3 s for GPUs.*2\.0 GiB free"):
        engine(session, OTHER, "t1")
    assert machine.children[0].alive


def test_waiting_for_another_run_is_not_a_hang(
    machine: FakeMachine, run: Callable[..., Session]
) -> None:
    first, second = run(), run()
    engine(first, ONE, "t1")
    with pytest.raises(DeviceBusy, match="GPU 0: held by another run") as caught:
        engine(second, ONE, "t1")
    assert caught.value.kind == "limit"
    waiting = "waiting for GPUs, at most 0 s. 1 of 1 GPUs wanted: GPU 0: held by another run"
    assert any(message.startswith(waiting) for message in machine.messages)
    first.close()
    engine(second, ONE, "t1")


def test_time_spent_waiting_does_not_count_for_the_test(
    run: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the start gets only the rest of pytest-timeout's time, and a start that misses it
    looks like a hang."""
    monkeypatch.setattr(session, "_SHORT_WAIT_S", 0.1)
    renewed: list[bool] = []
    first, second = run(), run(lambda: renewed.append(True), gpu_wait_s=20)
    engine(first, ONE, "t1")
    second.gpus.leases._report = lambda line: first.close()  # it waits now
    engine(second, ONE, "t1")
    assert renewed == [True]
    engine(second, OTHER, "t2")
    assert renewed == [True]


def test_probes_lease_too(machine: FakeMachine, run: Callable[..., Session]) -> None:
    first, second = run(), run()
    probe = first.probe(TARGET, "t1")
    assert probe.environment["CUDA_VISIBLE_DEVICES"] == "0"  # type: ignore[attr-defined]
    with pytest.raises(DeviceBusy):
        second.probe(TARGET, "t1")
    probe.kill()
    second.probe(TARGET, "t1")


def test_a_start_that_fails_gives_the_gpu_back(
    machine: FakeMachine, run: Callable[..., Session]
) -> None:
    machine.broken = True
    with pytest.raises(ChildDied):
        engine(run(), ONE, "t1")
    machine.broken = False
    engine(run(), ONE, "t1")


def test_the_gpu_request_and_the_memory_that_must_be_free(
    machine: FakeMachine, run: Callable[..., Session]
) -> None:
    machine.used["0"] = 20 * GIB
    session = run()
    engine(session, ONE, "t1")
    gpu_request = machine.children[0].spec["gpu"]
    amounts = {
        "needed": placement.OWN + placement.KV_CACHE,
        "cache": placement.KV_CACHE,
        "tiny": True,
    }
    device = {
        "name": "stand-in",
        "memory": 80 * GIB,
        "used": 20 * GIB,
        "capability": [9, 0],
        "part": False,
    }
    assert gpu_request == {**amounts, "devices": [device]}
    with pytest.raises(
        DeviceBusy, match=r"56\.\d GiB free, 72\.0 needed"
    ):  # by vLLM's rule: a share of the whole
        engine(session, ONE.replace(extra={"gpu_memory_utilization": 0.9}), "t1")
    session.close()
    with pytest.raises(
        DeviceBusy, match=r"60\.0 GiB free, 72\.0 needed"
    ):  # a real model: vLLM's own default
        engine(run(model="/a/real/model"), ONE, "t2")
    with pytest.raises(Unsupported, match="needs 2 GPUs; 1 can be used here"):
        engine(run(), ONE.replace(tensor_parallel_size=2), "t1")


@pytest.mark.parametrize(
    ("log", "error", "words"),
    [
        (
            "ValueError: No valid attention backend found for cuda with x",
            Unsupported,
            r"No valid attention",
        ),
        ("RuntimeError: CUDA error: out of memory", ChildDied, "it died"),
    ],
)
def test_what_a_server_refuses_on_this_gpu_is_not_applicable(
    log: str,
    error: type[Exception],
    words: str,
    run: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def died(launch: Launch, *rest: object) -> None:
        launch.child.kill()
        raise ChildDied("it died", phase="ready", detail=f"(EngineCore) {log}\n")

    monkeypatch.setattr(server, "start_server", died)
    with pytest.raises(error, match=words if error is Unsupported else "it died"):
        run().start("serve", TARGET, ONE, user="t1", fresh=False)


def test_a_first_start_has_more_time(machine: FakeMachine, run: Callable[..., Session]) -> None:
    session = run()
    allowed = [engine(session, spec, "t1").child.start_deadline.allowed_s for spec in (ONE, OTHER)]  # type: ignore[attr-defined]
    assert allowed == [600, 20]


def test_gpu_facts_of_an_engine(machine: FakeMachine, run: Callable[..., Session]) -> None:
    log = "INFO 01-02 [cuda.py:509] Using FLASH_ATTN attention backend out of potential backends: ['x'].\n"
    (machine.folder / "log").write_text(log)
    session = run()
    assert session.gpus.facts(engine(session, ONE, "t1").child) == {
        "gpu": "stand-in (0)",
        "capability": "9.0",
        "driver": "580",
        "cuda": "13.0",
        "compute_mode": "default",
        "mig": "no",
        "attention_backend": "FLASH_ATTN",
        "start_method": "fork",
    }


@pytest.mark.parametrize(
    ("log", "backend"),
    [  # 0.5.4, 0.7.3, 0.8.5, 0.11.2 and 0.33.0 word it so
        ("INFO 08-05 12:00:00 selector.py:54] Using XFormers backend.", "XFormers"),
        ("INFO 02-20 12:00:00 cuda.py:229] Using Flash Attention backend.", "Flash Attention"),
        ("INFO 04-28 12:00:00 [cuda.py:214] Using FlashInfer backend on V1 engine.", "FlashInfer"),
        (
            "(EngineCore_DP0 pid=7) INFO 11-20 12:00:00 [cuda.py:377] Using FLASH_ATTN backend.",
            "FLASH_ATTN",
        ),
        ("INFO 06-01 12:00:00 [vllm.py:9] Using Transformers modeling backend.", "not logged"),
        (
            "INFO 06-01 12:00:00 [cuda_communicator.py:354] Using NCCL all-reduce backend",
            "not logged",
        ),
        (
            "INFO 06-01 [interface.py:430] Using default backend TORCH_SDPA for vit attention",
            "not logged",
        ),
        (
            "INFO [unquantized.py:530] Using TRITON MoE backend\nINFO [cuda.py:448] Using X_Y backend.",
            "X_Y",
        ),
    ],
)
def test_the_attention_backend_is_what_vllm_says_of_attention(
    log: str, backend: str, machine: FakeMachine, run: Callable[..., Session]
) -> None:
    (machine.folder / "log").write_text(log + "\n")
    session = run()
    assert session.gpus.facts(engine(session, ONE, "t1").child)["attention_backend"] == backend


def test_heads_are_wide_enough_for_the_backends_of_cuda(
    run: Callable[..., Session], tmp_path: Path
) -> None:
    session = run()
    heads = {}
    for device in ("sim", "cpu", "gpu"):
        config = json.loads(Path(session.model_path("text", device), "config.json").read_text())
        heads[device] = config["hidden_size"] // config["num_attention_heads"]
    assert heads == {"sim": 32, "cpu": 32, "gpu": 64}


def test_the_agent_gets_numbers_and_kept_caches(
    machine: FakeMachine, run: Callable[..., Session]
) -> None:
    machine.used = {"3": 0, "5": 0}
    place = placement.Placement(
        machine.messages.append, {"PATH": "/bin", "TRITON_CACHE_DIR": "/theirs"}
    )
    run()
    environment = place.agent_environment(TARGET)
    assert environment["CUDA_VISIBLE_DEVICES"] == "3,5"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    assert environment["PATH"] == f"/x/bin{os.pathsep}/bin"
    assert environment["VLLM_CACHE_ROOT"] == str(
        machine.folder / "compiled" / "vllm-0.11.2" / "vllm"
    )
    assert "TRITON_CACHE_DIR" not in environment
