"""Work that a warm agent does once for all its children: imports, model classes, bytecode. vLLM is
a stand-in."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.engines.agents import Agents
from pytest_vllm_regress.engines.placement import Placement
from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.engines.processes.child import Child
from pytest_vllm_regress.engines.settings import Limits
from pytest_vllm_regress.engines.target import Target
from pytest_vllm_regress.environments.cache import bytecode_folder
from pytest_vllm_regress.environments.installed import read_installed
from pytest_vllm_regress.errors import ChildDied, UsageError
from pytest_vllm_regress.target_site.vllm_regress_target import spawning
from pytest_vllm_regress.target_site.vllm_regress_target.spawning import call_in_fork
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.paths import writable_root
from pytest_vllm_regress.util.rundir import RunDir
from tests.conftest import MakeTarget
from tests.helpers import fake_gpus, fake_vllm

NVML_THREAD = """
import threading, time
def _wait():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
        name.write("cuda00001800007")
    named.set()
    time.sleep(600)
named = threading.Event()
threading.Thread(target=_wait, daemon=True).start()
named.wait()
"""


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    file = tmp_path / "probe.py"
    file.write_text(fake_vllm.REPORT)
    return file


@pytest.fixture
def target(make_target: MakeTarget) -> Path:
    """An interpreter with a stand-in for vLLM."""
    python = make_target()
    fake_vllm.install(python)
    return python


@pytest.fixture
def warm(target: Path, run_dir: RunDir) -> Iterator[Agent]:
    agent = Agent(target, run_dir)
    agent.start(Deadline.after("import", 60))
    agent.warm(Deadline.after("import", 60))
    assert agent.import_error is None
    yield agent
    agent.stop()


def ask(agent: Agent, file: Path, function: str, **arguments: Any) -> Any:
    return ask_child(
        agent.start_child("probe", Deadline.after("start", 60)), file, function, **arguments
    )


def ask_child(child: Child, file: Path, function: str, **arguments: Any) -> Any:
    try:
        return child.request(
            "call",
            Deadline.after("probe", 60),
            file=str(file),
            function=function,
            arguments=arguments,
        )
    finally:
        child.stop(Deadline.after("stop", 60))


def test_model_classes_are_inspected_once_in_a_fork(warm: Agent, probe: Path) -> None:
    assert ask(warm, probe, "learned", architecture="Small") == "an interpreter of its own"
    warm.inspect(Deadline.after("import", 60), architectures=["Small"])
    first, second = (ask(warm, probe, "learned", architecture="Small") for _ in range(2))
    assert first["model"] == "small"
    assert first["by"] == second["by"] not in (first["here"], first["agent"])
    assert first["plugins"] == [first["by"]]  # loaded as vLLM does there, and nowhere else
    assert (
        ask(warm, probe, "learned", architecture="Large") == "an interpreter of its own"
    )  # not requested


def test_children_inherit_what_each_of_them_would_import(
    target: Path, run_dir: RunDir, probe: Path
) -> None:
    agent = Agent(target, run_dir)
    agent.start(Deadline.after("import", 60))
    agent.warm(Deadline.after("import", 60))
    imported = ask(agent, probe, "imported")
    agent.stop()
    assert "vllm.ray.cluster" in imported
    assert "vllm.entrypoints.serve.adapters.api_router" in imported


def test_the_parser_of_servers_is_built_once_and_plugins_are_left_to_each_server(
    target: Path, run_dir: RunDir, probe: Path
) -> None:
    agent = Agent(target, run_dir)
    agent.start(Deadline.after("import", 60))
    agent.warm(Deadline.after("import", 60))
    first, second = (ask(agent, probe, "parser") for _ in range(2))
    agent.stop()
    assert first["built in"] == second["built in"] not in (first["here"], second["here"])
    assert first["plugins"] == [False, []]


def test_entry_points_are_read_once_for_all_children_until_a_folder_of_the_path_changes(
    target: Path, run_dir: RunDir, probe: Path, tmp_path: Path
) -> None:
    def add_plugin(folder: Path, name: str) -> None:
        package = folder / f"{name}-1.dist-info"
        package.mkdir(parents=True)
        (package / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (package / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {name}\n")

    site = next((target.parent.parent / "lib").glob("python3.*/site-packages"))
    add_plugin(site, "installed")
    agent = Agent(target, run_dir)
    agent.start(Deadline.after("import", 60))
    agent.warm(Deadline.after("import", 60))
    assert ask(agent, probe, "plugins", read=False) == ["installed"]
    add_plugin(tmp_path / "plugins", "given")
    child = agent.start_child(
        "probe", Deadline.after("start", 60), import_path=[tmp_path / "plugins"]
    )
    assert sorted(ask_child(child, probe, "plugins")) == ["given", "installed"]
    add_plugin(site, "later")
    assert sorted(ask(agent, probe, "plugins")) == ["installed", "later"]
    agent.stop()


def test_a_class_that_cannot_be_inspected_is_left_to_the_engine(warm: Agent, probe: Path) -> None:
    warm.inspect(Deadline.after("import", 60), architectures=["Broken", "Unheard of"])
    assert ask(warm, probe, "learned", architecture="Broken") == "an interpreter of its own"
    assert warm.alive


def test_a_fork_returns_its_result_or_how_it_ended() -> None:
    assert call_in_fork(lambda: {"fork of": os.getppid()}) == {"fork of": os.getpid()}
    with pytest.raises(RuntimeError, match="wait status 256"):
        call_in_fork(lambda: sys.exit(3))


@pytest.mark.parametrize(
    ("variables", "start_method", "patience"),
    [
        ({"VLLM_PATIENCE": "3"}, "spawn", "3"),
        ({"VLLM_PATIENCE": "3", "VLLM_OTHER": "4"}, "spawn", "3"),
        ({"OMP_NUM_THREADS": "7"}, "spawn", "10"),  # a library has, unseen
        ({"VLLM_OTHER": "3"}, "fork", "10"),  # nothing has read it yet
        ({}, "fork", "10"),
    ],
)
def test_a_variable_read_at_import_still_counts(
    warm: Agent, probe: Path, variables: dict[str, str], start_method: str, patience: str
) -> None:
    child = warm.start_child("probe", Deadline.after("start", 60), environment=variables)
    assert child.start_method == start_method
    assert ask_child(child, probe, "patience") == patience


def test_threads_that_the_import_has_started_are_named_as_the_reason_to_spawn(
    target: Path, run_dir: RunDir
) -> None:
    package = (
        next((target.parent.parent / "lib").glob("python3.*/site-packages"))
        / "vllm"
        / "__init__.py"
    )
    with package.open("a") as file:
        file.write(
            "\nimport threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        )
    agent = Agent(target, run_dir)
    agent.start(Deadline.after("import", 60))
    try:
        agent.warm(Deadline.after("import", 60))
        assert agent.import_error is None
        assert agent.spawns == "importing vLLM started 1 thread"
        assert agent.start_child("probe", Deadline.after("start", 60)).start_method == "spawn"
    finally:
        agent.stop()


@pytest.mark.parametrize(
    ("initialized", "spawns", "start_method"),
    [
        ("0", "", "fork"),
        (
            "3",
            "importing vLLM started threads of the driver, and cuInit returns 3 in a fork",
            "spawn",
        ),
    ],
)
def test_a_thread_of_the_driver_is_harmless_if_cuda_works_in_a_fork(
    initialized: str, spawns: str, start_method: str, target: Path, run_dir: RunDir
) -> None:
    package = (
        next((target.parent.parent / "lib").glob("python3.*/site-packages"))
        / "vllm"
        / "__init__.py"
    )
    with package.open("a") as file:
        file.write(NVML_THREAD)
    variables = {
        "VLLM_REGRESS_DEVICE": "gpu",
        "LD_LIBRARY_PATH": str(fake_gpus.cuda_folder()),
        "FAKE_CUDA_INIT": initialized,
    }
    agent = Agent(target, run_dir, environment=variables)
    agent.start(Deadline.after("import", 60))
    try:
        agent.warm(Deadline.after("import", 60))
        assert agent.import_error is None
        assert agent.spawns == spawns
        assert agent.start_child("probe", Deadline.after("start", 60)).start_method == start_method
    finally:
        agent.stop()


def test_requested_spawn_uses_no_fork_server(warm: Agent, probe: Path) -> None:
    spawned = warm.start_child("probe", Deadline.after("start", 60), start_method="spawn")
    assert ask_child(spawned, probe, "variable", name=spawning.DISABLED) == "1"
    needs_spawn = warm.start_child(
        "probe", Deadline.after("start", 60), environment={"VLLM_PATIENCE": "3"}
    )
    assert ask_child(needs_spawn, probe, "variable", name=spawning.DISABLED) is None


def test_vllms_caches_lie_in_our_cache(warm: Agent, probe: Path) -> None:
    assert ask(warm, probe, "variable", name="VLLM_CACHE_ROOT") == str(writable_root() / "vllm")


def test_what_packages_cache_lies_in_our_cache_unless_the_user_chose(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    variables = Agent(Path(sys.executable), run_dir).child_environment
    ours = str(writable_root() / "target-caches")
    assert variables()["XDG_CACHE_HOME"] == ours
    assert "HF_HUB_CACHE" not in variables()
    models = tmp_path / ".cache/huggingface/hub"
    models.mkdir(parents=True)
    assert variables()["HF_HUB_CACHE"] == str(models)
    monkeypatch.setenv("HF_HOME", "/mine")
    assert (variables()["HF_HOME"], variables().get("HF_HUB_CACHE")) == ("/mine", None)
    monkeypatch.setenv("XDG_CACHE_HOME", "/mine")
    assert variables()["XDG_CACHE_HOME"] == "/mine"


def test_an_instruction_that_the_cpu_lacks_is_named(
    make_target: MakeTarget, run_dir: RunDir
) -> None:
    python = make_target(vllm="0.8.4")
    (module,) = python.parent.parent.glob("lib/python3.*/site-packages/vllm.py")
    module.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    agent = Agent(python, run_dir)
    agent.start(Deadline.after("import", 60))
    with pytest.raises(
        ChildDied, match="killed by SIGILL, usually for an instruction that this CPU lacks"
    ):
        agent.warm(Deadline.after("import", 60))


def test_a_run_directory_that_was_removed_is_named(agent: Agent) -> None:
    """Regression: a bare FileNotFoundError."""
    shutil.rmtree(agent.run.path)
    with pytest.raises(UsageError, match=f"{agent.run.path} was removed while it was in use"):
        agent.start_child("probe", Deadline.after("start", 60))


def test_bytecode_is_written_inside_environments_of_the_cache_alone(
    target: Path, run_dir: RunDir, probe: Path
) -> None:
    place = target.parent.parent

    def compiled() -> set[str]:
        agent = Agent(target, run_dir)
        agent.start(Deadline.after("import", 60))
        agent.warm(Deadline.after("import", 60))
        ask(agent, probe, "variable", name="HOME")
        agent.stop()
        return {str(file.relative_to(place)) for file in place.rglob("*.pyc")}

    assert bytecode_folder(target) is None
    assert compiled() == set()
    (place / "vllm-regress.json").write_text("{}")  # as after a finished build
    files = compiled()
    assert any("vllm/model_executor" in file or "vllm/engine/arg_utils" in file for file in files)
    assert all(file.startswith("vllm-regress-bytecode/") for file in files)
    assert not any("probe" in Path(file).name for file in files)


def test_an_environment_that_cannot_be_written_gets_no_bytecode(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target.parent.parent / "vllm-regress.json").write_text("{}")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert bytecode_folder(target) is None


def test_a_changed_probe_file_is_read_again(target: Path, run_dir: RunDir, probe: Path) -> None:
    (target.parent.parent / "vllm-regress.json").write_text("{}")
    agent = Agent(target, run_dir)
    agent.start(Deadline.after("import", 60))
    answers = []
    for number in range(
        2
    ):  # as long as before, in the same second: bytecode would be taken for current
        probe.write_text(f"def answer():\n    return {number}\n")
        os.utime(probe, (1, 1))
        answers.append(ask(agent, probe, "answer"))
    agent.stop()
    assert answers == [0, 1]


@pytest.fixture
def agents(
    target: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Agents, Target]]:
    """The agents of a session, and the target with the stand-in for vLLM."""
    monkeypatch.setenv("VLLM_OTHER", "changed later")
    deadline_for = lambda phase, seconds: Deadline.after(phase, seconds or 60)  # noqa: E731
    made = Agents(
        *(
            lambda: run_dir,
            Placement(lambda line: None),
            Limits(),
            deadline_for,
            lambda line: None,
        ),
        inherited={name: value for name, value in os.environ.items() if name != "VLLM_OTHER"},
    )
    yield made, Target("stand-in", target, "cpu", read_installed(target))
    made.stop()


def fork_with(agents: Agents, target: Target, variables: dict[str, str]) -> tuple[Agent, Child]:
    agent = agents.forking(target, variables)
    return agent, agent.start_child("probe", Deadline.after("start", 60), environment=variables)


def test_children_with_a_variable_that_the_import_reads_are_forked_from_an_agent_with_it(
    agents: tuple[Agents, Target], probe: Path
) -> None:
    warm = agents[0].warm(agents[1])
    for patience in ("3", "3", "4"):
        agent, child = fork_with(*agents, {"VLLM_PATIENCE": patience, "VLLM_ANY": "1"})
        assert agent is not warm
        assert child.start_method == "fork"
        assert ask_child(child, probe, "patience") == patience
    assert len(agents[0].started) == 3
    agent, child = fork_with(*agents, {"VLLM_ANY": "1"})
    assert agent is warm
    assert (
        ask_child(child, probe, "variable", name="VLLM_OTHER") is None
    )  # set after the session began


def test_an_agent_with_variables_ends_for_another_one_unless_it_has_a_child(
    agents: tuple[Agents, Target], probe: Path
) -> None:
    first, child = fork_with(*agents, {"VLLM_PATIENCE": "1"})
    second, ended = fork_with(*agents, {"VLLM_PATIENCE": "2"})
    ended.stop(Deadline.after("stop", 60))
    third, other = fork_with(*agents, {"VLLM_PATIENCE": "3"})
    assert [agent.alive for agent in (first, second, third)] == [True, False, True]
    agent, spawned = fork_with(*agents, {"VLLM_PATIENCE": "4"})  # both have a child
    assert agent is agents[0].warm(agents[1])
    assert spawned.start_method == "spawn"
    for patience, of in (("1", child), ("3", other), ("4", spawned)):
        assert ask_child(of, probe, "patience") == patience
