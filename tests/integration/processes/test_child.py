"""Children that misbehave end within their deadline, are described, and leave nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_vllm_regress.engines.processes import child_processes, dossier, process_tree
from pytest_vllm_regress.engines.processes.agent import TARGET_SITE, Agent
from pytest_vllm_regress.engines.processes.child import Child
from pytest_vllm_regress.errors import ChildDied, DeadlineExceeded, ProtocolError, RemoteError
from pytest_vllm_regress.target_site.vllm_regress_target.nanny import Segments, descendants
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import RunDir
from tests.conftest import MakeTarget

PROBE = Path(__file__).with_name("probe.py")
DEADLINE_S = 0.5
REFUSED = """Error: Failed to open it

Caused by:
    0: Permission denied (os error 13)
    1: Permission denied (os error 13)

Stack backtrace:
   0: py_spy::python_spy::PythonSpy::new
   1: main
"""
"""What py-spy prints."""
ENDED_S = 30.0
"""Limit for what ends in a second or two on an idle machine.

Without the deadline it would take 600 s.
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on after its child counts as left behind at once."""
    monkeypatch.setattr(child_processes, "_LEAVE_S", 0.1)


@pytest.fixture(params=["fork", "spawn"])
def child(agent: Agent, request: pytest.FixtureRequest) -> Child:
    return agent.start_child("probe", Deadline.after("start", 60), start_method=request.param)


def ask(child: Child, function: str, seconds: float = 60.0, **arguments: Any) -> Any:
    return child.request(
        "call",
        Deadline.after("probe", seconds),
        file=str(PROBE),
        function=function,
        arguments=arguments,
    )


def gone(pid: int) -> bool:
    return not process_tree.wait_until_gone(
        [psutil.Process(pid)] if psutil.pid_exists(pid) else [], ENDED_S
    )


def nothing_left(agent: Agent) -> bool:
    """Return whether the agent is the only live process of its run."""
    return not process_tree.wait_until_gone(
        [p for p in process_tree.with_tag(agent.run.tag) if p.pid not in agent.pids], ENDED_S
    )


def test_answers_and_stops(agent: Agent, child: Child) -> None:
    assert ask(child, "echo", value={"a": [1, "ü"]}) == {"a": [1, "ü"]}
    assert child.stop(Deadline.after("stop", 60)) == ()
    assert child.exit_status == 0
    assert nothing_left(agent)


@pytest.mark.parametrize(
    "function", ["hang", "hang_in_native_code", "hang_and_ignore_term", "leave_grandchild_and_hang"]
)
def test_hang_ends_at_its_deadline_with_a_dossier(
    agent: Agent, child: Child, function: str
) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        ask(child, function, DEADLINE_S)
    assert time.monotonic() - started < ENDED_S
    assert caught.value.phase == "probe"
    assert function in caught.value.detail or "no stack" in caught.value.detail
    assert nothing_left(agent)


def test_why_there_is_no_stack_is_said(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the kernel does not let processes read each other."""
    py_spy = tmp_path / "py-spy"
    py_spy.write_text(f"#!/bin/sh\ncat >&2 <<'E'\n{REFUSED}E\nexit 1\n")
    py_spy.chmod(0o755)
    monkeypatch.setattr(dossier, "py_spy", lambda: str(py_spy))
    with pytest.raises(DeadlineExceeded) as caught:
        ask(child, "hang", DEADLINE_S)
    assert "(no stack: Failed to open it; Permission denied (os error 13))" in caught.value.detail


@pytest.mark.parametrize(
    ("function", "how"), [("exit_in_silence", "exit status 0"), ("crash", "SIGSEGV")]
)
def test_death_without_a_reply_is_a_crash(
    agent: Agent, child: Child, function: str, how: str
) -> None:
    with pytest.raises(ChildDied, match=how):
        ask(child, function)
    assert nothing_left(agent)


@pytest.mark.usefixtures("impatient")
def test_a_death_already_reported_is_not_a_hang(child: Child) -> None:
    """A leftover of the child holds its channel open, and its lifeline is silent."""
    ask(child, "leave_grandchild", hold_output=True)
    assert child.pid is not None
    psutil.Process(child.pid).kill()
    child.pause(60)
    assert not child.alive
    with pytest.raises(ChildDied, match="killed by SIGKILL"):
        ask(child, "echo", DEADLINE_S, value=1)


def test_a_child_that_was_not_reported_does_not_start() -> None:
    """The nanny is killed just before it reports which process it has started."""
    program = """
import os, signal
from vllm_regress_target import nanny

class Lifeline:
    def send(self, frame):
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self):
        pass

nanny.watch(Lifeline(), lambda: os.write(1, b"it runs") and 0, set(), {"cwd": "/tmp/none", "log": "/dev/null", "limits": {}, "limit_options": {}})
"""
    variables = {**os.environ, "PYTHONPATH": str(TARGET_SITE)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, b"", b"")


def test_error_keeps_the_child(child: Child) -> None:
    with pytest.raises(RemoteError, match="RuntimeError: what upstream said") as caught:
        ask(child, "raise_error", text="what upstream said")
    assert "raise_error" in caught.value.detail
    assert ask(child, "echo", value=1) == 1
    child.kill()


def test_reply_that_is_not_json_is_an_error(child: Child) -> None:
    with pytest.raises(RemoteError, match="not JSON serializable"):
        ask(child, "not_json")
    child.kill()


def test_unknown_function_lists_what_there_is(child: Child) -> None:
    with pytest.raises(RemoteError, match=r"no probe function 'ecko'; it offers .*echo"):
        ask(child, "ecko")
    child.kill()


def test_garbage_is_a_protocol_error(agent: Agent, child: Child) -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        ask(child, "say_garbage", fd_name="{{{ not a frame")
    assert nothing_left(agent)


def test_a_flood_of_output_does_not_block(child: Child) -> None:
    assert ask(child, "flood", megabytes=20) == 20
    child.kill()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("arguments", [{"hold_output": True}, {"hold_output": False}])
def test_daemonised_grandchild_is_named_and_ended(
    agent: Agent, child: Child, arguments: dict[str, bool]
) -> None:
    grandchild = ask(child, "leave_grandchild", **arguments)
    leftovers = child.stop(Deadline.after("stop", 60))
    assert any(str(grandchild) in leftover.name for leftover in leftovers)
    assert gone(grandchild)
    assert nothing_left(agent)


@pytest.mark.usefixtures("impatient")
def test_grandchild_of_another_program_is_named_and_ended(agent: Agent, child: Child) -> None:
    grandchild = ask(child, "leave_exec_grandchild")
    assert any("sleep 600" in leftover.name for leftover in child.stop(Deadline.after("stop", 60)))
    assert gone(grandchild)


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "new"])
def test_shared_memory_left_behind_is_removed_and_reported(
    agent: Agent, child: Child, recorded: bool
) -> None:
    """Also if the nanny has recorded it already, and removes it at its end."""
    path = ask(child, "leave_shared_memory")
    while recorded and path not in map(str, agent.run.segments()):
        child.pause(0.05)
    assert [leftover.name for leftover in child.stop(Deadline.after("stop", 60))] == [path]
    assert not Path(path).exists()


def test_shared_memory_of_processes_killed_at_once_is_removed(child: Child) -> None:
    """All processes die at once, before the nanny's next snapshot, as when the kernel kills an
    engine for memory."""
    psutil.Process(child.nanny_pid).suspend()
    path = Path(ask(child, "leave_shared_memory"))
    child.note_shared_memory()
    process_tree.send_signal(child.processes(), signal.SIGKILL)
    child.kill()
    assert not path.exists()


@pytest.mark.parametrize("map_it", [True, False], ids=["mapped", "opened"])
def test_shared_memory_of_a_process_killed_earlier_is_removed(
    agent: Agent, child: Child, map_it: bool
) -> None:
    """No process maps the segment any more when the child ends, as when an engine core was killed
    during its start."""
    pid, path = ask(child, "hold_shared_memory", map_it=map_it)
    while path not in map(str, agent.run.segments()):
        child.pause(0.05)
    psutil.Process(pid).kill()
    child.stop(Deadline.after("stop", 60))
    assert not Path(path).exists()


def test_shared_memory_is_recorded_when_it_is_created(tmp_path: Path) -> None:
    """The process may be killed before the nanny's next regular check."""
    program = """
import os, signal, socket, sys, time
from vllm_regress_target import nanny
from vllm_regress_target.protocol import FrameSocket

nanny._CHECK_S = 3600.0
controller, lifeline = socket.socketpair()
folder = sys.argv[1]

def child():
    path = "/dev/shm/vllm_regress_test_" + str(os.getpid())
    os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    print(path, flush=True)
    nanny_pid = os.getppid()
    while os.getppid() == nanny_pid and not os.path.exists(os.path.join(folder, nanny.SEGMENTS)):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

nanny.watch(FrameSocket(lifeline), child, {controller.fileno()}, {"cwd": folder + "/cwd", "log": os.devnull, "limits": {}, "limit_options": {}})
"""
    variables = {**os.environ, "PYTHONPATH": str(TARGET_SITE)}
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], env=variables, capture_output=True, timeout=60
    )
    assert done.stderr == b""
    assert not Path(done.stdout.decode().strip()).exists()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_file_older_than_the_child_is_not_removed(agent: Agent, end: str) -> None:
    """For example a checkpoint in /dev/shm, which an engine maps."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(4096)
        child = agent.start_child("probe", Deadline.after("start", 60))
        ask(child, "map_file", path=file.name)
        child.note_shared_memory()
        child.stop(Deadline.after("stop", 60)) if end == "stop" else child.kill()
        assert Path(file.name).exists()


@pytest.mark.parametrize("created", ["before the first look", "between looks"])
def test_a_file_that_is_mapped_after_it_was_first_seen_is_noted(
    tmp_path: Path, created: str
) -> None:
    """``note`` inspects this process's children, and one of them maps a file that was unmapped
    before."""
    segments = Segments(str(tmp_path / "noted"))
    if created == "between looks":
        segments.note(descendants(os.getpid()))
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(4096)
        segments.note(descendants(os.getpid()))
        assert (
            not (tmp_path / "noted").exists() or file.name not in (tmp_path / "noted").read_text()
        )
        with mapping(file.name):
            segments.note(descendants(os.getpid()))
        assert (
            f"{os.stat(file.name).st_ino} {file.name}"
            in (tmp_path / "noted").read_text().splitlines()
        )


def test_semaphores_of_a_dying_ray_are_removed(tmp_path: Path) -> None:
    """Semaphores of a live process with a reused pid stay, and so do those of unrelated processes."""
    segments = Segments(str(tmp_path / "noted"))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as died:
        segments.note([died.pid, os.getpid()])
        died.communicate(b"\n")
    with subprocess.Popen([sys.executable, "-c", ""]) as another:
        pass
    semaphores = {
        pid: Path(f"/dev/shm/sem.hdr{pid}-{time.time_ns()}")
        for pid in (died.pid, os.getpid(), another.pid)
    }
    try:
        for path in semaphores.values():
            path.touch()
        segments.remove()
        assert [pid for pid, path in semaphores.items() if path.exists()] == [
            os.getpid(),
            another.pid,
        ]
    finally:
        for path in semaphores.values():
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def mapping(path: str) -> Iterator[None]:
    """Run a child process that has mapped the file."""
    program = "import mmap, os, sys; kept = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.communicate("\n")


@pytest.mark.parametrize("leave", ["leave_shared_memory", "leave_semaphore"])
def test_children_that_were_not_stopped_end_with_their_agent(
    agent: Agent, child: Child, leave: str
) -> None:
    path, pids = Path(ask(child, leave)), ask(child, "pids")
    agent.stop()
    assert not path.exists() and gone(pids["pid"])


def test_stopped_process_ends_at_the_deadline(agent: Agent, child: Child) -> None:
    os.kill(ask(child, "pids")["pid"], signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        ask(child, "echo", DEADLINE_S, value=1)
    assert time.monotonic() - started < ENDED_S
    assert nothing_left(agent)


def test_agent_killed_leaves_children_usable_and_stoppable(agent: Agent, child: Child) -> None:
    assert agent._process is not None
    agent._process.kill()
    assert ask(child, "echo", value=1) == 1
    child.stop(Deadline.after("stop", 60))
    assert not process_tree.wait_until_gone(process_tree.with_tag(agent.run.tag), ENDED_S)


def test_logs_of_children_that_ended_long_ago_are_removed(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_vllm_regress.engines.processes.agent.KEPT_LOGS", 2)
    living = agent.start_child("probe", Deadline.after("start", 60))
    ended = []
    for _ in range(4):
        child = agent.start_child("probe", Deadline.after("start", 60))
        child.stop(Deadline.after("stop", 60))
        ended.append(child.log)
    assert living.log.exists()
    assert [log.exists() for log in ended] == [False, False, True, True]
    living.stop(Deadline.after("stop", 60))


@pytest.mark.parametrize(("start_method", "thaws"), [("fork", False), ("spawn", True)])
def test_what_a_forked_child_forks_stays_frozen(
    agent: Agent, start_method: str, thaws: bool
) -> None:
    """Collecting the agent's frozen heap takes longer than the rest of an engine's shutdown.

    A spawned child shares no heap with it.
    """
    child = agent.start_child("probe", Deadline.after("start", 60), start_method=start_method)
    assert (ask(child, "thawed") > 0) is thaws


def test_an_agent_that_is_interrupted_at_work_ends_at_once(
    make_target: MakeTarget, run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = make_target(vllm="0.8.4")
    (module,) = python.parents[1].glob("lib/python3.*/site-packages/vllm.py")
    importing = tmp_path / "importing"
    module.write_text(f"open({str(importing)!r}, 'w').close()\nimport time\ntime.sleep(600)\n")
    monkeypatch.setattr("pytest_vllm_regress.engines.processes.agent._END_S", 120.0)
    agent = Agent(python, run_dir)
    agent.start(Deadline.after("import", 60))
    own = threading.get_ident()

    def interrupt() -> None:
        while not importing.exists():
            time.sleep(0.01)
        signal.pthread_kill(own, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        agent.warm(Deadline.after("import", 60))
    began = time.monotonic()
    agent.stop()
    assert time.monotonic() - began < 60
    assert process_tree.with_tag(run_dir.tag) == []
