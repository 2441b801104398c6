"""Two identical commands at once: the second is refused, and its error names the other process; it
damages nothing. However the first ends, the second may run then."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_vllm_regress.cli.survey import resumed
from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.history import candidates
from pytest_vllm_regress.history.watch import SeenReleases
from pytest_vllm_regress.runner.journal import Journal
from pytest_vllm_regress.surveys.conformance import open_runs
from pytest_vllm_regress.util.exclusive import Exclusive
from pytest_vllm_regress.util.store import Store
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile

HOLDS = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.hostile.test_two_runs import USERS
with USERS[{name!r}](Path({place!r})):
    print("has it", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def _journal(place: Path) -> Iterator[None]:
    journal = Journal(place, ["key"])
    journal.begin()
    yield


@contextlib.contextmanager
def _bisection(place: Path) -> Iterator[None]:
    with contextlib.closing(candidates.open_results(["key"], place / "results.jsonl")):
        yield


@contextlib.contextmanager
def _watch(place: Path) -> Iterator[None]:
    with contextlib.closing(SeenReleases(place / "seen.jsonl")):
        yield


@contextlib.contextmanager
def _survey(place: Path) -> Iterator[None]:
    os.environ["VLLM_REGRESS_CACHE"] = str(place)
    with resumed(open_runs, ["key"], fresh=False):
        yield


@contextlib.contextmanager
def _limit(place: Path) -> Iterator[None]:
    with uv.own_cache(place / "uv"):
        yield


@contextlib.contextmanager
def _campaign(place: Path) -> Iterator[None]:
    store = Store(place / "journal.jsonl", str, what="the journal of a campaign")
    store.lock()
    with contextlib.closing(store):
        yield


USERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[None]]] = {
    "journal": _journal,
    "bisect": _bisection,
    "watch": _watch,
    "survey": _survey,
    "limit of disk space": _limit,
    "campaign": _campaign,
}


@pytest.mark.parametrize("ending", ["itself", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("name", USERS)
def test_a_second_process_is_told_which_one_has_it(
    name: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path))
    code = HOLDS.format(root=str(ROOT), name=name, place=str(tmp_path))
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdin is not None and first.stdout is not None
        try:
            assert first.stdout.readline() == "has it\n"
            expected = rf"in use by process {first.pid} \(python.*\)\. Wait for its end, or end it with `kill {first.pid}`"
            with pytest.raises(UsageError, match=expected), USERS[name](tmp_path):
                pass
            if ending == "itself":
                first.communicate("\n")
            else:
                first.send_signal(signal.Signals[ending])
                first.wait()
        finally:
            first.kill()
    with USERS[name](tmp_path):
        pass


def test_a_pid_that_another_process_has_by_now_is_not_named(tmp_path: Path) -> None:
    first, second = (Exclusive(tmp_path / "x", "this") for _ in range(2))
    first.acquire()
    (tmp_path / ".x.pid").write_text("4194304999\n")
    with pytest.raises(UsageError, match=r"in use by another process\. Wait for its end"):
        second.acquire()
    second.release()  # takes nothing from the first
    with pytest.raises(UsageError):
        second.acquire()
    first.release()
    assert list(tmp_path.iterdir()) == []
    second.acquire()
    second.release()


def test_a_lock_is_had_when_its_file_is_removed_between_opening_and_locking_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (Exclusive(tmp_path / "x", "this") for _ in range(3))
    first.acquire()
    flock = fcntl.flock

    def release_and_lock(descriptor: int, operation: int) -> None:
        first.release()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", release_and_lock)
    second.acquire()
    with pytest.raises(UsageError, match=f"in use by process {os.getpid()}"):
        third.acquire()
    second.release()


def test_one_run_at_a_time_has_a_journal_whose_folder_comes_and_goes(tmp_path: Path) -> None:
    """Its end removes the lock and the folder while others take them."""
    held, taken = threading.Lock(), []

    def take_and_remove() -> None:
        for _ in range(300):
            lock = Exclusive(tmp_path / "journal" / "x", "this")
            with contextlib.suppress(UsageError):
                lock.acquire()
                taken.append(held.acquire(blocking=False))
                if taken[-1]:
                    held.release()
                lock.release()
                with contextlib.suppress(OSError):  # another one has begun
                    (tmp_path / "journal").rmdir()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(take_and_remove) for _ in range(4)]:
            future.result()
    assert all(taken)


def test_what_was_written_meanwhile_is_read_even_if_it_has_the_same_size(tmp_path: Path) -> None:
    def store() -> Store[str]:
        return Store(tmp_path / "s", str, what="a store")

    store().add("a", "one")
    late = store()
    again = store()
    again.remove()
    again.add("b", "two")
    late.lock()
    assert dict(late.entries) == {"b": "two"}
    late.close()


def test_the_end_of_one_run_does_not_unlock_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run begins while another one removes its journal."""
    first, second, third = (Journal(tmp_path, ["key"]) for _ in range(3))
    first.begin()
    released = Exclusive.release

    def release_and_begin(lock: Exclusive) -> None:
        monkeypatch.setattr(Exclusive, "release", released)
        with pytest.raises(UsageError):
            second.begin()
        released(lock)
        second.begin()

    monkeypatch.setattr(Exclusive, "release", release_and_begin)
    first.close()
    with pytest.raises(UsageError, match=f"in use by process {os.getpid()}"):
        third.begin()
    second.close()
    assert not second.directory.exists()


def test_two_identical_commands_have_one_table_and_one_refusal(
    affected_target: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    text = f"""
import pytest, time, pathlib
@pytest.mark.vllm_case("one")
def test_it(vllm_probe):
    pathlib.Path({str(tmp_path / "running")!r}).touch()
    while not pathlib.Path({str(gate)!r}).exists():
        time.sleep(0.05)
    assert vllm_probe("version")
"""
    probe = "def version():\n    import vllm\n    return vllm.__version__\n"
    files = {"probe.py": probe, "test_one.py": text}
    CaseFile("one", pattern="expected", affected="<0.1").write(tmp_path / "cases", files)
    command = [sys.executable, "-m", "pytest_vllm_regress", "--cases", str(tmp_path / "cases")]
    command += ["matrix", "--env", str(affected_target)]
    environment = {**os.environ, "VLLM_REGRESS_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        try:
            deadline = time.monotonic() + 120
            while not (tmp_path / "running").exists():
                assert first.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            for more in ([], ["--fresh"]):
                second = subprocess.run(
                    [*command, *more], env=environment, capture_output=True, text=True, check=False
                )
                assert second.returncode == 2
                assert f"in use by process {first.pid} " in second.stderr
            gate.touch()
            output, _ = first.communicate(timeout=120)
        finally:
            first.kill()
    assert first.returncode == 0
    assert "1 FIXED" in output
    assert list((tmp_path / "cache" / "matrix").iterdir()) == []
