"""What a killed run left is found and removed; what only looks like it stays."""

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
from pytest_vllm_regress.processes import family, leftovers
from pytest_vllm_regress.processes.agent import Agent
from pytest_vllm_regress.target_site.vllm_regress_target.nanny import TAG
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.owner import Owner, State, start_ticks
from pytest_vllm_regress.util.rundir import RunDir, abandoned_runs

# A controller that is killed together with its nannies: what it started lives on. The escaped child is in a session of its own.
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
    path: Path
    tag: str
    escaped: psutil.Process
    mapped: Path
    noted: Path

    def there(self) -> list[bool]:
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
    killed = Killed(Path(path), tag, psutil.Process(int(pid)), Path(mapped), Path(noted))
    try:
        if kill:
            process.send_signal(signal.SIGKILL)
            process.wait()
        yield killed
    finally:
        process.kill()
        process.communicate()
        family.end([killed.escaped], grace_s=0)
        RunDir(killed.path, "").remove()
        for segment in (killed.mapped, killed.noted):
            segment.unlink(missing_ok=True)


@pytest.fixture
def killed() -> Iterator[Killed]:
    with controller(kill=True) as found:
        yield found


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def named(killed: Killed) -> list[str]:
    """What is found of the killed run, whatever else lies about on this machine."""
    ours = (str(killed.path), str(killed.mapped), str(killed.noted))
    return [
        trace.what
        for trace in leftovers.of_runs()
        if trace.name in ours or trace.name.startswith(f"{killed.escaped.pid} ")
    ]


def test_doctor_shows_and_touches_nothing_then_removes(killed: Killed, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(named(killed)) == ["process", "run directory", "shared memory", "shared memory"]
    assert cli.main(["doctor"]) == 1
    shown = capsys.readouterr().out
    for name in (killed.path, killed.mapped, killed.noted, killed.escaped.pid):
        assert str(name) in shown
    assert killed.there() == [True] * 4
    cli.main(["doctor", "--remove", "--json"])
    removed = {each["name"]: each["removed"] for each in json.loads(capsys.readouterr().out)}
    assert removed[str(killed.path)]
    assert killed.there() == [False] * 4
    assert named(killed) == []


def test_the_next_run_removes_it_too(killed: Killed) -> None:
    said = leftovers.sweep()
    assert any(line.startswith(f"removed run directory {killed.path}, left by process") for line in said)
    assert killed.there() == [False] * 4


def test_a_living_run_is_left_alone() -> None:
    with controller(kill=False) as living:
        assert named(living) == []
        leftovers.sweep()
        assert living.there() == [True] * 4


def test_what_only_looks_like_ours_stays(killed: Killed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same command, similar tag, same kind of directory and segment, and a segment of the run that a stranger has mapped."""
    command = killed.escaped.cmdline()
    similar = ("vr-other", f"{killed.path.name}-1.2.3-zz", Owner.me().tag("vr-x", "ab"))
    tags: list[dict[str, str]] = [{}, {f"X{TAG}": killed.tag}, *({TAG: each} for each in similar)]
    strangers = [subprocess.Popen(command, env={**os.environ, **tag}, stdout=subprocess.PIPE) for tag in tags]
    for stranger in strangers:
        assert stranger.stdout is not None
        stranger.stdout.readline()
    monkeypatch.setattr("tempfile.tempdir", str(killed.path.parent))
    folders = {
        name: killed.path.with_name(f"{killed.path.name}-{name}") for name in ("empty", "text", "foreign", "link")
    }
    folders["link"].symlink_to(killed.path)
    for name in ("empty", "text", "foreign"):
        folders[name].mkdir()
    (folders["text"] / "run.json").write_text("not JSON")
    (folders["foreign"] / "run.json").write_text((killed.path / "run.json").read_text())  # names another directory
    other = Path(f"/dev/shm/vr_test_other_{os.getpid()}")
    other.write_bytes(b"x")
    killed.noted.unlink()
    killed.noted.write_bytes(b"another file of the same name, so the note is not about it")
    try:
        leftovers.sweep()
        assert [stranger.poll() for stranger in strangers] == [None] * len(strangers)
        assert all(os.path.lexists(folder) for folder in folders.values())
        assert other.exists()
        assert killed.mapped.exists()  # strangers have it mapped
        assert killed.there() == [False, False, True, killed.noted.exists()]
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.communicate()
        other.unlink()
        for folder in folders.values():
            folder.unlink() if folder.is_symlink() else RunDir(folder, "").remove()


def test_what_was_there_before_the_run_is_spared() -> None:
    """A user's file in /dev/shm that an abandoned engine has mapped."""
    theirs = Path(f"/dev/shm/vr_test_checkpoint_{os.getpid()}")
    theirs.write_bytes(bytes(4096))
    try:
        subprocess.run([sys.executable, "-c", ""], check=True)  # takes longer than a tick, in which starts are counted
        with controller(kill=True, mapped_too=[theirs]) as killed:
            leftovers.sweep()
            assert killed.there() == [False] * 4
            assert theirs.exists()
    finally:
        theirs.unlink()


@pytest.mark.parametrize("leave", ["leave_shared_memory", "leave_semaphore"])
def test_nannies_note_what_their_family_has_mapped(agent: Agent, leave: str) -> None:
    child = agent.fork("probe", Deadline.after("start", 20))
    probe = Path(__file__).with_name("probe.py")
    path = child.request("call", Deadline.after("probe", 20), file=str(probe), function=leave, arguments={})
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
        ({"boot": "before", "host": "another"}, State.UNKNOWN),  # a directory shared between machines
    ],
)
def test_owners(changes: dict[str, object], state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = dataclasses.replace(Owner.me(), **changes)  # type: ignore[arg-type]
    assert owner.state() is state
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = RunDir.create()
    (run.path / "run.json").write_text(json.dumps({**dataclasses.asdict(owner), "tag": run.tag}))
    assert [each.run for each in abandoned_runs()] == ([run] if state is State.GONE else [])


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

    places = {name: cache / "environments" / f"vllm-{name}" for name in ("half", "whole", "building")}
    for place in places.values():
        (place / "lib").mkdir(parents=True)
    (places["whole"] / "vllm-regress.json").write_text("{}")
    fresh, old = cache / "sidecars" / ".ray-new", cache / "sidecars" / ".ray-old"
    for folder in (fresh, old):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    build = "import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print(flush=True); sys.stdin.read()"
    builder = subprocess.Popen(
        [sys.executable, "-c", build, f"{places['building']}.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert builder.stdout is not None
    builder.stdout.readline()
    try:
        assert [trace.name for trace in leftovers.of_builds()] == [str(places["half"]), str(old)]
        assert all(trace.remove() for trace in leftovers.of_builds())
        assert [place.exists() for place in places.values()] == [False, True, True]
        assert (fresh.exists(), old.exists()) == (True, False)
    finally:
        builder.communicate()
    assert [trace.name for trace in leftovers.of_builds()] == [str(places["building"])]
    FileLock(f"{places['building']}.lock").acquire(timeout=0)  # nobody holds it any more


def test_a_clean_machine_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(leftovers, "of_runs", lambda: iter(()))
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out == "nothing is left behind\n"


def test_files_of_the_moment_are_found_too() -> None:
    """What a killed command had in its scratch folder."""
    program = "import sys\nfrom pytest_vllm_regress.util.rundir import scratch\nwith scratch() as folder: print(folder, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        leftovers.sweep()
        assert folder.exists()
        process.kill()
    leftovers.sweep()
    assert not folder.exists()


def test_a_run_whose_controller_is_gone_though_its_worker_lives(tmp_path: Path) -> None:
    """As under xdist: the run is a worker's, and what the worker worked for has been killed."""
    dead = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    controller = dataclasses.replace(Owner.me(), pid=dead.pid, ticks=start_ticks(dead.pid) or 0)
    run = RunDir.create(controller)
    target = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, TAG: run.tag}
    )
    try:
        assert not [each for each in leftovers.of_runs() if run.path.name in each.name or f"{target.pid} " in each.name]
        dead.kill()
        dead.wait()
        found = [each for each in leftovers.of_runs() if run.path.name in each.name or f"{target.pid} " in each.name]
        assert [each.what for each in found] == ["process", "run directory"]
        assert {each.owner for each in found} == {f"process {dead.pid}, which is gone"}
        assert all(each.remove() for each in found)
    finally:
        for process in (dead, target):
            process.kill()
            process.communicate()
        run.remove()
