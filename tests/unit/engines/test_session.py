"""What the session remembers, shares, refuses and cleans up, with stand-ins for agents, engines and
environments."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from pytest_vllm_regress.engines import session
from pytest_vllm_regress.engines.agents import Agents
from pytest_vllm_regress.engines.engine import Engine
from pytest_vllm_regress.engines.processes.child import Loan
from pytest_vllm_regress.engines.processes.child_processes import Leftover
from pytest_vllm_regress.engines.processes.early_exit import (
    NO_EARLY_EXIT,
    DocumentedHang,
    EarlyExitPolicy,
)
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Limits, Settings
from pytest_vllm_regress.engines.spec import EngineSpec, front_named
from pytest_vllm_regress.engines.target import Target
from pytest_vllm_regress.environments.installed import Installed
from pytest_vllm_regress.errors import BuildError, ChildDied, LimitExceeded, Unsupported, UsageError
from pytest_vllm_regress.util.deadline import Deadline

ONE, OTHER = EngineSpec(seed=1), EngineSpec(seed=2)


def target(device: str = "sim", **versions: str) -> Target:
    packages = {"vllm": "0.8.4", **versions}
    return Target(
        "old", Path("/x/bin/python"), device, Installed("/x", "3.11", MappingProxyType(packages))
    )


@dataclasses.dataclass
class FakeChild:
    """An engine that starts at once; ``leaves`` is left behind when it is stopped."""

    label: str
    environment: Mapping[str, str]
    name: str = "engine 1"
    alive: bool = True
    leaves: tuple[Leftover, ...] = ()
    loan: Loan | None = None
    spec: dict[str, Any] = dataclasses.field(default_factory=dict)
    noted: bool = False
    end_expected: bool = False

    def request(self, operation: str, deadline: Deadline, **arguments: Any) -> Any:
        if operation != "start":
            return [{"outputs": [{"token_ids": [1]}]}]  # to whether it still works
        self.spec = arguments["spec"]
        return {"kwargs": {}, "env": {}, "notes": [], "generation": "V1"}

    @property
    def tree(self) -> FakeChild:
        return self

    def adopt_engine(self) -> None:
        pass

    def note_shared_memory(self) -> None:
        self.noted = bool(self.spec)

    def kill(self) -> None:
        self.alive = False

    def stop(self, deadline: Deadline) -> tuple[Leftover, ...]:
        self.alive = False
        return self.leaves


@dataclasses.dataclass
class FakeAgent:
    """Records the children it started."""

    children: list[FakeChild] = dataclasses.field(default_factory=list)
    import_error: Exception | None = None
    refusal: str | None = None
    stopped: bool = False
    alive: bool = True
    spawns: str = ""

    def read_at_import(self, deadline: Deadline, variables: Mapping[str, str]) -> tuple[str, ...]:
        return ()

    def inspect(self, deadline: Deadline, *, architectures: Sequence[str]) -> None:
        pass

    def start_child(
        self,
        role: str,
        deadline: Deadline,
        *,
        environment: Mapping[str, str],
        label: str = "",
        loan: Loan,
        **rest: Any,
    ) -> FakeChild:
        self.children.append(FakeChild(label or role, environment, loan=loan))
        return self.children[-1]

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoints: Path) -> FakeAgent:
    (tmp_path / "checkpoints").symlink_to(checkpoints)
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path))
    fake_agent = FakeAgent()

    def of(self: Agents, target: Target) -> Any:
        self._agents[target.name, target.device, frozenset()] = fake_agent  # type: ignore[assignment]
        return fake_agent

    monkeypatch.setattr(Agents, "warm", of)
    monkeypatch.setattr(session, "remove_abandoned", list)
    return fake_agent


Make = Callable[..., Session]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return a function that makes a session with these settings and the requested deadlines."""
    sessions: list[Session] = []

    def start(early_exit: Callable[[], EarlyExitPolicy] | None = None, **settings: Any) -> Session:
        def deadline_for(phase: str, seconds: float | None) -> Deadline:
            return Deadline.after(phase, 20 if seconds is None else seconds)

        sessions.append(Session(Settings(**settings), deadline_for, early_exit=early_exit))
        return sessions[-1]

    yield start
    for opened in sessions:
        opened.close()


def engine(
    run: Session,
    spec: EngineSpec = ONE,
    user: str = "t1",
    fresh: bool = False,
    on: Target | None = None,
) -> Engine:
    running: Engine = run.start("offline", on or target(), spec, user=user, fresh=fresh)
    return running


def test_equal_specs_share_an_engine_and_fresh_ones_do_not(agent: FakeAgent, make: Make) -> None:
    run = make()
    shared = engine(run)
    assert engine(run, user="t2") is shared
    assert engine(run, user="t2", fresh=True) is not shared
    assert engine(run, OTHER, user="t3") is not shared
    assert [(child.alive, child.noted) for child in agent.children] == [(True, True)] * 3
    run.drop(target(), ONE, "offline")
    assert not agent.children[0].alive and engine(run, user="t4") is not shared


@pytest.mark.parametrize("fresh", [True, False])
def test_a_removed_run_directory_is_named_as_the_cause_of_a_failed_start(
    agent: FakeAgent, make: Make, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    run = make()

    def die(self: FakeChild, operation: str, deadline: Deadline, **arguments: Any) -> None:
        shutil.rmtree(run.run.path)
        run.run.path.mkdir()  # as a process does that writes a file there
        raise ChildDied("it closed its channel", phase="start")

    monkeypatch.setattr(FakeChild, "request", die)
    with pytest.raises(UsageError, match="was removed while it was in use"):
        engine(run, fresh=fresh)


@pytest.mark.parametrize(
    ("error", "starts"),
    [
        (ChildDied("it ended", phase="start"), 1),
        (Unsupported("not here", lacks="it"), 1),
        (LimitExceeded("too much memory", phase="start"), 2),
    ],
)
def test_a_spec_that_cannot_start_is_started_once(
    agent: FakeAgent,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    starts: int,
) -> None:
    def refuse(self: FakeChild, operation: str, deadline: Deadline, **arguments: Any) -> None:
        raise error

    monkeypatch.setattr(FakeChild, "request", refuse)
    run = make()
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            run.start("offline", target(), ONE, user="t", fresh=False, remember=True)
        assert raised.value is error
    assert len(agent.children) == starts
    with pytest.raises(type(error)):
        engine(run)  # a case may have to show the failure several times
    assert len(agent.children) == starts + 1


@pytest.mark.parametrize(("length", "positions"), [(512, 4096), (4096, 4096), (4097, 32768)])
def test_a_long_context_gets_a_longer_model(
    agent: FakeAgent, make: Make, length: int, positions: int
) -> None:
    engine(make(), EngineSpec.create(max_model_len=length))
    config = Path(agent.children[0].spec["model_path"], "config.json")
    assert json.loads(config.read_text())["max_position_embeddings"] == positions


@pytest.mark.parametrize(
    ("named", "path"), [("draft", "draft-*"), ("org/real", "real"), ("/a/path", "path")]
)
def test_a_draft_model_may_be_a_kind(named: str, path: str, agent: FakeAgent, make: Make) -> None:
    engine(make(), EngineSpec.create(extra={"speculative_config": {"model": named}}))
    model = Path(agent.children[0].spec["extra"]["speculative_config"]["model"])
    assert fnmatch(model.name, path) and (model / "config.json").exists() == (named == "draft")


def test_a_test_that_changes_the_working_directory_changes_no_environment(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(environments=("vllm-0.8.4",))
    before = run.environment_names()
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert run.environment_names() == before == ("vllm-0.8.4",)


def test_an_environment_is_inspected_once(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    looked: list[str] = []
    lines: list[str] = []
    newer = dataclasses.replace(
        target(), installed=Installed("/x", "3.11", MappingProxyType({"vllm": "99.0"}))
    )

    def look(name: str, python: Path, device: str) -> Target:
        looked.append(name)
        return newer

    monkeypatch.setattr(session, "inspect", look)
    run = make()
    run.progress = lines.append
    assert run.target("/bin/sh") is newer and run.target("/bin/sh") is newer
    assert looked == ["/bin/sh"]
    (line,) = lines
    assert line.startswith("warning: vLLM 99.0 is newer than any this was tried with")


def test_an_environment_that_cannot_be_built_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    tried: list[str] = []

    def resolve(name: str) -> None:
        tried.append(name)
        raise BuildError("no solution")

    monkeypatch.setattr("pytest_vllm_regress.environments.names.resolve", resolve)
    run = make()
    for _ in range(2):
        with pytest.raises(BuildError, match="no solution"):
            run.target("vllm-0.8.4")
    assert tried == ["vllm-0.8.4"]


@pytest.mark.parametrize(
    ("spec", "on", "front", "error", "words"),
    [
        (
            ONE.replace(server_options={"a": 1}),
            target(),
            "offline",
            UsageError,
            "mean nothing to front='offline'",
        ),
        (
            ONE.replace(import_path=["plugins"]),
            target(),
            "offline",
            UsageError,
            "begin at the test file; give absolute paths here",
        ),
        (ONE, target("none"), "offline", Unsupported, "old has no engines"),
        (
            ONE.replace(model="vision"),
            target(),
            "offline",
            Unsupported,
            "cannot load the vision model",
        ),
    ],
)
def test_what_is_refused_before_anything_starts(
    agent: FakeAgent,
    make: Make,
    spec: EngineSpec,
    on: Target,
    front: str,
    error: type[Exception],
    words: str,
) -> None:
    run = make()
    with pytest.raises(error, match=words):
        run.start(front_named(front), on, spec, user="t1", fresh=False)
    assert agent.children == []


@pytest.mark.parametrize(
    ("broken", "error", "words"),
    [
        (FakeAgent(import_error=ImportError("no libcuda")), ImportError, "no libcuda"),
        (
            FakeAgent(refusal="has no simulated device"),
            Unsupported,
            "has no simulated device .since vLLM 0.7, not on device sim",
        ),
    ],
)
def test_an_agent_that_cannot_have_engines_says_why(
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    broken: FakeAgent,
    error: type[Exception],
    words: str,
) -> None:
    monkeypatch.setattr(Agents, "warm", lambda self, target: broken)
    with pytest.raises(error, match=words):
        engine(make())
    assert broken.children == []


def test_nothing_is_started_after_the_budget(agent: FakeAgent, make: Make) -> None:
    run = make(limits=Limits(session_s=-1))
    with pytest.raises(LimitExceeded, match=r"budget of -1 s is used up .--vllm-limit session."):
        engine(run)
    assert agent.children == []


def test_the_early_exit_policy_of_a_test_reaches_its_engine(agent: FakeAgent, make: Make) -> None:
    waiting = EarlyExitPolicy(DocumentedHang("waiting", ("ready",)), deaths=False)
    policies = iter([waiting, EarlyExitPolicy()])
    run = make(early_exit=lambda: next(policies))
    engine(run)
    engine(run, OTHER)
    engine(make(full_deadlines=True))
    assert [child.loan and child.loan.early_exit for child in agent.children] == [
        waiting,
        EarlyExitPolicy(),
        NO_EARLY_EXIT,
    ]


def test_the_request_that_starts_an_engine(agent: FakeAgent, make: Make) -> None:
    engine(make(model="/a/model"), ONE.replace(env={"A": "b"}))
    (child,) = agent.children
    assert child.environment["A"] == "b" and child.label == "offline"
    assert (child.spec["model_path"], child.spec["device"], child.spec["seed"]) == (
        "/a/model",
        "sim",
        1,
    )


def test_close_stops_everything_and_charges_the_last_user(agent: FakeAgent, make: Make) -> None:
    run = make()
    engine(run)
    engine(run, user="t2")
    agent.children[0].leaves = (Leftover("port", "8000"),)
    folder = run.run.path
    assert folder.exists()
    run.close()
    assert not agent.children[0].alive and agent.stopped and not folder.exists()
    assert run.leftover_reports == [("t2", (Leftover("port", "8000"),))]
    run.close()  # nothing is left to do
