"""Agents for several processes are forked from one import of vLLM, here of a stand-in."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.engines.agents import Agents
from pytest_vllm_regress.engines.placement import Placement
from pytest_vllm_regress.engines.processes import process_tree, shared_agents
from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.engines.processes.shared_agents import (
    AgentRefused,
    ForkedAgent,
    SharedAgents,
    listening,
)
from pytest_vllm_regress.engines.settings import Limits
from pytest_vllm_regress.engines.target import Target
from pytest_vllm_regress.environments.installed import read_installed
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import RunDir
from tests.conftest import MakeTarget
from tests.helpers import fake_vllm

PROBE = """
import os, tempfile
def place():
    return {"tempdir": tempfile.gettempdir(), "folder": os.getcwd(), "tag": os.environ["VLLM_REGRESS_TAG"]}
"""
BROKEN = "raise OSError('broken')"
THREAD = (
    "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
)
USER = """
import sys, time
from pathlib import Path
from pytest_vllm_regress.engines.processes.shared_agents import ForkedAgent
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import RunDir
run = RunDir.create()
agent = ForkedAgent(sys.argv[1], Path(sys.argv[2]), run)
agent.start(Deadline.after("import", 60))
child = agent.start_child("probe", Deadline.after("start", 60))
print(run.tag, agent.pid, child.nanny_pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def imports(tmp_path: Path) -> Path:
    """A file with a line for each import of the stand-in."""
    return tmp_path / "imports"


@pytest.fixture
def python(make_target: MakeTarget, imports: Path) -> Path:
    python = make_target()
    fake_vllm.install(python)
    fake_vllm.at_import(python, f"open({str(imports)!r}, 'a').write('imported\\n')")
    return python


@pytest.fixture
def shared() -> Iterator[SharedAgents]:
    with contextlib.closing(SharedAgents()) as shared:
        yield shared


Fork = Callable[[], ForkedAgent]


@pytest.fixture
def fork(shared: SharedAgents, python: Path) -> Iterator[Fork]:
    """Forks an agent for a run of its own."""
    with contextlib.ExitStack() as stack:

        def make() -> ForkedAgent:
            run = RunDir.create()
            stack.callback(run.remove)
            agent = ForkedAgent(shared.address, python, run)
            agent.start(Deadline.after("import", 60))
            stack.callback(agent.stop)
            return agent

        yield make


def seconds(value: float = 60) -> Deadline:
    return Deadline.after("probe", value)


def test_two_agents_come_from_one_import_and_differ_in_their_run(
    fork: Fork, imports: Path, tmp_path: Path
) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    for agent in (fork(), fork()):
        agent.warm(seconds())
        assert agent.import_error is None and not agent.spawns
        child = agent.start_child("probe", seconds())
        place = child.request("call", seconds(), file=str(probe), function="place", arguments={})
        assert place["tempdir"] == str(agent.run.path)
        assert place["folder"].startswith(str(agent.run.path))
        assert place["tag"] == agent.run.tag
        tagged = {process.pid for process in process_tree.with_tag(agent.run.tag)}
        assert {agent.pid, child.pid, child.nanny_pid} <= tagged
        child.stop(seconds())
    assert imports.read_text().count("imported") == 1


def test_an_agent_that_ends_leaves_the_others(fork: Fork) -> None:
    first, second = fork(), fork()
    tag = first.run.tag
    first.stop()
    assert not first.alive and first.pid is None
    assert not process_tree.with_tag(tag)
    assert second.alive
    second.start_child("probe", seconds()).stop(seconds())


def test_the_import_ends_with_its_last_user(fork: Fork, imports: Path) -> None:
    first = fork()
    origin = psutil.Process(first.pid).parents()[1]  # above the agent's nanny
    first.stop()
    assert not process_tree.wait_until_gone([origin], 60)
    fork()
    assert imports.read_text().count("imported") == 2


def test_closing_leaves_agents_to_those_who_asked(python: Path, run_dir: RunDir) -> None:
    shared = SharedAgents()
    agent = ForkedAgent(shared.address, python, run_dir)
    agent.start(seconds())
    shared.close()
    assert not Path(shared.address).exists()
    agent.start_child("probe", seconds()).stop(seconds())
    agent.stop()
    assert not process_tree.with_tag(run_dir.tag)


def test_a_killed_agent_leaves_its_children(fork: Fork) -> None:
    agent = fork()
    child = agent.start_child("probe", seconds())
    processes = list(map(psutil.Process, agent.pids))  # with its nanny, which reports the end
    processes[1].kill()
    assert not process_tree.wait_until_gone(processes, 60)
    assert not agent.alive and agent.describe_end() == "killed by SIGKILL"
    assert child.alive
    child.stop(seconds())
    assert not child.leftovers


def test_an_import_that_is_killed_is_repeated_and_leaves_its_agents(
    fork: Fork, imports: Path
) -> None:
    first = fork()
    origin = psutil.Process(first.pid).parents()[1]
    origin.kill()
    assert not process_tree.wait_until_gone([origin], 60)
    second = fork()
    for agent in (first, second):
        agent.start_child("probe", seconds()).stop(seconds())
    assert imports.read_text().count("imported") == 2


def test_agents_that_ask_at_the_same_time_get_one_import(
    shared: SharedAgents, python: Path, imports: Path
) -> None:
    def use(number: int) -> int | None:
        run = RunDir.create()
        agent = ForkedAgent(
            shared.address, python, run, environment={"VLLM_PATIENCE": str(number % 2)}
        )
        agent.start(seconds())
        arrived.wait(60)
        pid = agent.pid
        agent.stop()
        run.remove()
        return pid

    arrived = threading.Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(use, range(6)))) == 6
    assert imports.read_text().count("imported") == 2  # one for each value of a variable


def test_closing_during_an_import_ends_it(python: Path, run_dir: RunDir, imports: Path) -> None:
    fake_vllm.at_import(python, "import time; time.sleep(600)")
    shared = SharedAgents()
    with ThreadPoolExecutor(1) as pool:
        agent = ForkedAgent(shared.address, python, run_dir)
        asked = pool.submit(agent.start, seconds(600))
        while not imports.exists():
            time.sleep(0.01)
        shared.close()
        assert isinstance(asked.exception(60), AgentRefused)


def test_a_tag_without_room_is_refused(
    monkeypatch: pytest.MonkeyPatch, python: Path, run_dir: RunDir
) -> None:
    monkeypatch.setattr(shared_agents, "_SECRET_BYTES", 1)
    with contextlib.closing(SharedAgents()) as shared:
        agent = ForkedAgent(shared.address, python, run_dir)
        with pytest.raises(AgentRefused):
            agent.start(seconds())
    assert "no room for the tag" in agent.log.read_text()


def test_an_agent_ends_when_its_user_is_killed(shared: SharedAgents, python: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(USER), shared.address, str(python)],
        stdout=subprocess.PIPE,
        text=True,
    ) as user:
        assert user.stdout is not None
        tag, *pids = user.stdout.readline().split()
        processes = [
            *process_tree.with_tag(tag),
            *filter(None, map(process_tree.find, map(int, pids))),
        ]
        assert len(processes) >= 4
        user.kill()
    assert not process_tree.wait_until_gone(processes, 60)


@pytest.mark.parametrize(("code", "why"), [(BROKEN, "broken"), (THREAD, "started 1 thread")])
def test_what_cannot_be_forked_is_refused(
    shared: SharedAgents, python: Path, run_dir: RunDir, code: str, why: str
) -> None:
    fake_vllm.at_import(python, code)
    agent = ForkedAgent(shared.address, python, run_dir)
    with pytest.raises(AgentRefused, match=why):
        agent.start(seconds())
    agent.stop()


@pytest.mark.parametrize("listens", [True, False], ids=["no-answer", "nobody"])
def test_without_shared_agents_each_process_has_its_own(
    python: Path, run_dir: RunDir, listens: bool
) -> None:
    address = str(run_dir.path / "silent")
    allowed = iter([1, 60, 60])  # only the first wait is for the others
    agents = Agents(
        lambda: run_dir,
        Placement(lambda line: None),
        Limits(),
        lambda phase, s: Deadline.after(phase, next(allowed)),
        lambda line: None,
        shared=address,
    )
    with socket.socket(socket.AF_UNIX) as listener:
        if listens:
            listener.bind(address)
            listener.listen()
        agent = agents.warm(Target("x", python, "sim", read_installed(python)))
        assert type(agent) is Agent and agent.import_error is None
        agents.stop()


def test_no_socket_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with listening() as address:
        assert address == ""
    assert not list(long.iterdir())
