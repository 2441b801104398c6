"""Leftovers of a killed run are found and removed; anything that only looks like one stays."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.engines.processes import abandoned, process_tree
from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.target_site.vllm_regress_target.nanny import TAG
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import Owner, RunDir, State, abandoned_runs, start_ticks

# A controller that is killed together with its nannies; the processes it started survive. The
# escaped child has its own session.
CONTROLLER = f"""
import mmap, os, subprocess, sys
from pytest_vllm_regress.util.rundir import RunDir
run = RunDir.create()
child = "import mmap, os, sys, time; m = [mmap.mmap(os.open(each, os.O_RDWR), 0) for each in sys.argv[1:]]; print(flush=True); time.sleep(600)"
segments = [f"/dev/shm/vr_test_{{name}}_{{os.getpid()}}" for name in ("mapped", "noted")]
for path in segments:
    open(path, "wb").write(bytes(4096))
(run.path / "shared-memory").write_text(f"{{os.stat(segments[1]).st_ino}} {{segments[1]}}\\n")
command = [sys.executable, "-c", child, segments[0], *sys.argv[1:]]
escaped = subprocess.Popen(command, env={{**os.environ, {TAG!r}: run.tag}}, start_new_session=True, stdout=-1)
escaped.stdout.readline()
print(run.path, run.tag, escaped.pid, *segments, flush=True)
sys.stdin.read()
"""


@dataclasses.dataclass(frozen=True)
class Killed:
    pid: int
    path: Path
    tag: str
    escaped: psutil.Process
    mapped: Path
    noted: Path

    def existing(self) -> list[bool]:
        escaped = self.escaped.is_running() and self.escaped.status() != psutil.STATUS_ZOMBIE
        return [escaped, self.path.exists(), self.mapped.exists(), self.noted.exists()]


@contextlib.contextmanager
def controller(*, kill: bool, mapped_too: Sequence[Path] = ()) -> Iterator[Killed]:
    process = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, *map(str, mapped_too)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    path, tag, pid, mapped, noted = process.stdout.readline().split()
    killed = Killed(
        process.pid, Path(path), tag, psutil.Process(int(pid)), Path(mapped), Path(noted)
    )
    try:
        if kill:
            process.send_signal(signal.SIGKILL)
            process.wait()
        yield killed
    finally:
        process.kill()
        process.communicate()
        process_tree.terminate([killed.escaped], grace_s=0)
        RunDir(killed.path, "").remove()
        for segment in (killed.mapped, killed.noted):
            segment.unlink(missing_ok=True)


def can_unshare_time() -> bool:
    command = ["unshare", "--time", "--boottime", "1", "true"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True).returncode == 0
    return False


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Killed]:
    """A live run that this process takes for a killed one.

    Concurrent tests would remove what a really killed run left.
    """
    with controller(kill=False) as run:
        presume_dead(run.pid, monkeypatch)
        yield run


def presume_dead(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real_state = Owner.state
    monkeypatch.setattr(
        Owner, "state", lambda owner: State.GONE if owner.pid == pid else real_state(owner)
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def named(killed: Killed) -> list[str]:
    """Return the kinds of the killed run's leftovers; other runs' leftovers on this machine are
    ignored."""
    names = (str(killed.path), str(killed.mapped), str(killed.noted))
    return [
        trace.what
        for trace in abandoned.of_runs()
        if trace.name in names or trace.name.startswith(f"{killed.escaped.pid} ")
    ]


def test_doctor_shows_and_touches_nothing_then_removes(
    killed: Killed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(named(killed)) == ["process", "run directory", "shared memory", "shared memory"]
    assert cli.main(["doctor"]) == 1
    output = capsys.readouterr().out
    for name in (killed.path, killed.mapped, killed.noted, killed.escaped.pid):
        assert str(name) in output
    assert killed.existing() == [True] * 4
    cli.main(["doctor", "--remove", "--format", "json"])
    removed = {trace["name"]: trace["removed"] for trace in json.loads(capsys.readouterr().out)}
    assert removed[str(killed.path)]
    assert killed.existing() == [False] * 4
    assert named(killed) == []


def test_the_next_run_removes_it_too(killed: Killed) -> None:
    lines = abandoned.remove_abandoned()
    assert any(
        line.startswith(f"removed run directory {killed.path}, left by process") for line in lines
    )
    assert killed.existing() == [False] * 4


def test_a_run_that_was_really_killed_is_removed() -> None:
    with controller(kill=True) as killed:
        abandoned.remove_abandoned()  # or another test's run was faster
        assert killed.existing() == [False] * 4


def test_a_living_run_is_left_alone() -> None:
    with controller(kill=False) as living:
        assert named(living) == []
        abandoned.remove_abandoned()
        assert living.existing() == [True] * 4


def test_lookalikes_are_not_removed(
    killed: Killed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same command, similar tag, same kind of directory and segment, and a segment of the run that
    a stranger has mapped."""
    command = killed.escaped.cmdline()
    similar = ("vr-other", f"{killed.path.name}-1.2.3-zz", Owner.me().tag("vr-x", "ab"))
    tags: list[dict[str, str]] = [{}, {f"X{TAG}": killed.tag}, *({TAG: tag} for tag in similar)]
    strangers = [
        subprocess.Popen(command, env={**os.environ, **tag}, stdout=subprocess.PIPE) for tag in tags
    ]
    for stranger in strangers:
        assert stranger.stdout is not None
        stranger.stdout.readline()
    monkeypatch.setattr("tempfile.tempdir", str(killed.path.parent))
    folders = {
        name: killed.path.with_name(f"{killed.path.name}-{name}")
        for name in ("empty", "text", "foreign", "link")
    }
    folders["link"].symlink_to(killed.path)
    for name in ("empty", "text", "foreign"):
        folders[name].mkdir()
    (folders["text"] / "run.json").write_text("not JSON")
    (folders["foreign"] / "run.json").write_text(
        (killed.path / "run.json").read_text()
    )  # names another directory
    other = Path(f"/dev/shm/vr_test_other_{os.getpid()}")
    other.write_bytes(b"x")
    killed.noted.unlink()
    killed.noted.write_bytes(b"another file of the same name, so the note is not about it")
    try:
        abandoned.remove_abandoned()
        assert [stranger.poll() for stranger in strangers] == [None] * len(strangers)
        assert all(os.path.lexists(folder) for folder in folders.values())
        assert other.exists()
        assert killed.mapped.exists()  # strangers have it mapped
        assert killed.existing() == [False, False, True, killed.noted.exists()]
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.communicate()
        other.unlink()
        for folder in folders.values():
            folder.unlink() if folder.is_symlink() else RunDir(folder, "").remove()


def test_files_older_than_the_run_are_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's file in /dev/shm that an abandoned engine has mapped."""
    checkpoint = Path(f"/dev/shm/vr_test_checkpoint_{os.getpid()}")
    checkpoint.write_bytes(bytes(4096))
    try:
        subprocess.run(
            [sys.executable, "-c", ""], check=True
        )  # takes longer than a tick, in which starts are counted
        with controller(kill=False, mapped_too=[checkpoint]) as killed:
            presume_dead(killed.pid, monkeypatch)
            abandoned.remove_abandoned()
            assert killed.existing() == [False] * 4
            assert checkpoint.exists()
    finally:
        checkpoint.unlink()


@pytest.mark.parametrize("leave", ["leave_shared_memory", "leave_semaphore"])
def test_nannies_note_mapped_shared_memory(agent: Agent, leave: str) -> None:
    child = agent.start_child("probe", Deadline.after("start", 60))
    probe = Path(__file__).with_name("probe.py")
    path = child.request(
        "call", Deadline.after("probe", 20), file=str(probe), function=leave, arguments={}
    )
    try:
        noted = Deadline.after("probe", 20)
        while agent.run.segments() != (Path(path),) and not noted.passed:
            child.pause(0.05)
        assert agent.run.segments() == (Path(path),)
    finally:
        child.kill()
    assert agent.run.segments() == ()
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, State.ALIVE),
        ({"ticks": 1}, State.GONE),  # the pid was given to another process
        ({"pid": 2**22 + 1}, State.GONE),
        ({"namespace": 1}, State.UNKNOWN),  # another container's
        ({"boot": "before"}, State.GONE),
        (
            {"boot": "before", "host": "another"},
            State.UNKNOWN,
        ),  # a directory shared between machines
    ],
)
def test_owners(
    changes: dict[str, object], state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = dataclasses.replace(Owner.me(), **changes)  # type: ignore[arg-type]
    assert owner.state() is state
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = RunDir.create()
    (run.path / "run.json").write_text(
        json.dumps({"owner": dataclasses.asdict(owner), "tag": run.tag})
    )
    assert [abandoned_run.run for abandoned_run in abandoned_runs()] == (
        [run] if state is State.GONE else []
    )


def test_a_tag_names_its_owner() -> None:
    me = Owner.me()
    assert Owner.from_tag(me.tag("vr-abc_123", "0f")) == me
    for other in ("", "vr-abc", "vr-abc-1.2-0f", "vr-abc-a.2.3-0f"):
        assert Owner.from_tag(other) is None


def test_a_zombie_is_gone() -> None:
    process = subprocess.Popen(["true"])
    owner = dataclasses.replace(Owner.me(), pid=process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended and is not reaped yet
    assert owner.state() is State.GONE
    process.wait()


def test_half_built_environments(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from filelock import FileLock

    places = {
        name: cache / "environments" / f"vllm-{name}" for name in ("half", "whole", "building")
    }
    for place in places.values():
        (place / "lib").mkdir(parents=True)
    (places["whole"] / "vllm-regress.json").write_text("{}")
    fresh, old = cache / "sidecars" / ".ray-new", cache / "sidecars" / ".ray-old"
    for folder in (fresh, old):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    build = "import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print(flush=True); sys.stdin.read()"
    builder = subprocess.Popen(
        [sys.executable, "-c", build, f"{places['building']}.lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert builder.stdout is not None
    builder.stdout.readline()
    try:
        assert [trace.name for trace in abandoned.of_builds()] == [str(places["half"]), str(old)]
        assert all(trace.remove() for trace in abandoned.of_builds())
        assert [place.exists() for place in places.values()] == [False, True, True]
        assert (fresh.exists(), old.exists()) == (True, False)
    finally:
        builder.communicate()
    assert [trace.name for trace in abandoned.of_builds()] == [str(places["building"])]
    FileLock(f"{places['building']}.lock").acquire(timeout=0)  # no process holds it any longer


def test_a_clean_machine_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(abandoned, "of_runs", lambda: iter(()))
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out == "nothing is left behind\n"


def test_files_created_just_now_are_found_too() -> None:
    """Such as the scratch folder of a killed command."""
    program = "import sys\nfrom pytest_vllm_regress.util.rundir import scratch\nwith scratch() as folder: print(folder, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        abandoned.remove_abandoned()
        assert folder.exists()
        process.kill()
    abandoned.remove_abandoned()
    assert not folder.exists()


def test_a_run_whose_controller_has_ended_although_its_worker_lives(tmp_path: Path) -> None:
    """As under xdist: the run belongs to a worker, whose controller has been killed."""
    dead = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    controller = dataclasses.replace(Owner.me(), pid=dead.pid, ticks=start_ticks(dead.pid) or 0)
    run = RunDir.create(controller)
    target = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, TAG: run.tag}
    )
    try:
        assert not [
            trace
            for trace in abandoned.of_runs()
            if run.path.name in trace.name or f"{target.pid} " in trace.name
        ]
        dead.kill()
        dead.wait()
        traces = [
            trace
            for trace in abandoned.of_runs()
            if run.path.name in trace.name or f"{target.pid} " in trace.name
        ]
        assert [trace.what for trace in traces] == ["process", "run directory"]
        assert {trace.owner for trace in traces} == {f"process {dead.pid}, which is gone"}
        assert all(trace.remove() for trace in traces)
    finally:
        for process in (dead, target):
            process.kill()
            process.communicate()
        run.remove()


@pytest.mark.skipif(not can_unshare_time(), reason="needs unshare and time namespaces")
def test_a_run_in_another_time_namespace_is_not_taken_for_one_that_has_ended() -> None:
    """Its processes have other start times there."""
    code = (
        "from pytest_vllm_regress.util.rundir import Owner\n"
        f"print(Owner(**{dataclasses.asdict(Owner.me())!r}).state())"
    )
    command = ["unshare", "--time", "--boottime", "100000", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{State.UNKNOWN}\n"
    assert Owner.me().state() is State.ALIVE
