"""The fork server behind spawn: a process keeps multiprocessing's guarantees for a spawned one, and
starts with the imports done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client import values

from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.processes.agent import TARGET_SITE
from pytest_vllm_regress.target_site.vllm_regress_target import spawning

PROGRAM = """
import ctypes, json, multiprocessing, os, signal, sys, threading, time
sys.path.insert(0, {site!r})
from vllm_regress_target import spawning

def has(name, pipe):
    pipe.send((name in sys.modules, os.environ.get("LATER"), os.getppid(), len(os.listdir("/proc/self/fd")), open("/proc/self/comm").read()))

def leave(status):
    sys.exit(status)

def die(number):
    os.kill(os.getpid(), number)

def wait(pipe):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    pipe.send(os.getpid())
    time.sleep(600)

def wait_in_c(pipe):
    # As one that was between two waits when SIGTERM came: another thread takes the signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    pipe.send(os.getpid())
    while True:
        ctypes.CDLL(None).poll(None, 0, 600_000)

def nested(pipe):
    inner = multiprocessing.get_context("spawn").Process(target=has, args=("slow_to_import", pipe))
    inner.start()
    inner.join()

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    sys.modules["slow_to_import"] = type(sys)("slow_to_import")  # what this process has and a fresh interpreter has not
    if {quick}:
        assert spawning.install_fork_server({folder!r})
    os.environ["LATER"] = "set after the copy was made"
    found = {{}}

    def ask(target, *args):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=target, args=(*args, theirs))
        process.start()
        theirs.close()
        return process, ours

    process, pipe = ask(has, "slow_to_import")
    found["has"] = pipe.recv()
    process.join()
    found["joined"] = process.exitcode
    process, pipe = ask(nested)
    found["nested"] = pipe.recv()[0]
    process.join()
    for name, target, value in (("status", leave, 3), ("signal", die, signal.SIGSEGV)):
        process = spawn.Process(target=target, args=(value,))
        process.start()
        multiprocessing.connection.wait([process.sentinel], 60)
        process.join(60)
        found[name] = process.exitcode
    for name, end in (("terminated", "terminate"), ("killed", "kill")):
        process, pipe = ask(wait)
        pid = pipe.recv()
        getattr(process, end)()
        process.join(60)
        found[name] = process.exitcode
        until = time.monotonic() + 60
        while os.path.exists("/proc/%d" % pid) and time.monotonic() < until:
            time.sleep(0.01)
        found["gone " + name] = not os.path.exists("/proc/%d" % pid)
    if {quick}:
        process, pipe = ask(wait_in_c)
        pipe.recv()
        process.terminate()
        process.join(60)
        found["in C"] = process.exitcode
        process.kill()
    try:
        spawn.Process(target=lambda: None).start()
    except Exception as error:
        found["closure"] = type(error).__name__
    from multiprocessing import shared_memory
    segment = shared_memory.SharedMemory(create=True, size=10)  # starts the resource tracker, by the same program
    segment.close()
    segment.unlink()
    print(json.dumps(found), flush=True)
    sys.stdin.read()
"""


def run(tmp_path: Path, *, quick: bool) -> dict[str, Any]:
    file = tmp_path / f"program_{quick}.py"
    file.write_text(PROGRAM.format(site=str(TARGET_SITE), folder=str(tmp_path), quick=quick))
    with subprocess.Popen(
        [sys.executable, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        report: dict[str, Any] = json.loads(process.stdout.readline() or "{}")
        below = psutil.Process(process.pid).children(recursive=True)
        assert all(
            map(process_tree.is_helper, below)
        )  # the fork server and the resource tracker are no engine
        process.kill()
    assert below and not process_tree.wait_until_gone(below, 60)
    return report


@pytest.fixture
def short_path() -> Any:
    """Return a folder with a short path, as a socket needs."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="vr-") as folder:
        yield Path(folder)


def test_the_fork_server_equals_spawn_except_for_imports(short_path: Path) -> None:
    forked, spawned = run(short_path, quick=True), run(short_path, quick=False)
    assert forked["has"][0] and forked["nested"] and not spawned["has"][0] and not spawned["nested"]
    assert forked["has"][1] == spawned["has"][1] == "set after the copy was made"
    assert forked["has"][3] == spawned["has"][3]  # the same number of open files
    assert not forked["has"][4].startswith(spawning.PROCESS_NAME)
    same = (
        "joined",
        "status",
        "signal",
        "terminated",
        "killed",
        "gone terminated",
        "gone killed",
        "closure",
    )
    assert {name: forked[name] for name in same} == {name: spawned[name] for name in same}
    assert (forked["status"], forked["signal"], forked["terminated"], forked["killed"]) == (
        3,
        -11,
        7,
        -9,
    )
    assert (
        forked["in C"] == 7
    )  # it gets further signals, because the first arrives later than in a spawned process


def test_where_no_fork_server_is_possible_nothing_changes(tmp_path: Path) -> None:
    """The path is too long for a socket, or the process has threads and cannot be forked safely."""
    program = f"""
import multiprocessing.spawn, sys, threading, time
sys.path.insert(0, {str(TARGET_SITE)!r})
from vllm_regress_target import spawning
before = multiprocessing.spawn.get_executable()
assert not spawning.install_fork_server({str(tmp_path / ("x" * 120))!r})
threading.Thread(target=time.sleep, args=(1,)).start()
assert not spawning.install_fork_server("/tmp")
assert multiprocessing.spawn.get_executable() == before
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_processes_are_spawned_if_the_fork_server_dies(short_path: Path) -> None:
    program = f"""
import multiprocessing, os, signal, sys
sys.path.insert(0, {str(TARGET_SITE)!r})
from vllm_regress_target import spawning
if __name__ == "__main__":
    assert spawning.install_fork_server({str(short_path)!r})
    (server,) = os.popen(f"pgrep -P {{os.getpid()}} -f .").read().split()[:1]
    os.kill(int(server), signal.SIGKILL)
    os.waitpid(int(server), 0)
    process = multiprocessing.get_context("spawn").Process(target=sys.exit, args=(5,))
    process.start()
    process.join()
    assert process.exitcode == 5, process.exitcode
"""
    (short_path / "main.py").write_text(program)
    subprocess.run([sys.executable, str(short_path / "main.py")], check=True, timeout=60)


def test_counters_are_kept_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "ValueClass", values.MutexValue)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    spawning.reload_prometheus_values()
    assert values.ValueClass is not values.MutexValue
    values.ValueClass("counter", "tokens", "tokens_total", (), (), "").inc(3)
    assert list(tmp_path.glob("counter_*.db"))
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR")
    spawning.reload_prometheus_values()
    assert values.ValueClass is values.MutexValue
