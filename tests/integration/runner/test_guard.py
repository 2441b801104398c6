"""Requests to the guard: the same verdicts as in a local run and no leftovers, whichever process is
killed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.runner import guard as guard_module
from pytest_vllm_regress.runner.batch import Batch, BatchState, Needs, RunOptions
from pytest_vllm_regress.runner.guard import run_request
from pytest_vllm_regress.runner.wire import (
    BatchReply,
    BatchRequest,
    decode_reply,
    encode_request,
    pack,
)
from pytest_vllm_regress.util.rundir import PREFIX
from tests.helpers.waiting_cases import version_case


@pytest.fixture
def around(tmp_path: Path) -> dict[str, str]:
    """Environment variables of another machine: its own cache and temporary directory."""
    (tmp_path / "tmp").mkdir()
    return {
        **os.environ,
        "VLLM_REGRESS_CACHE": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "tmp"),
    }


def ask(
    request: BatchRequest, around: dict[str, str], keep_running: Callable[[], bool] = lambda: True
) -> Iterator[BatchReply]:
    return map(decode_reply, run_request(encode_request(request), around, "here", keep_running))


def processes(around: dict[str, str]) -> list[psutil.Process]:
    """Return the live processes whose temporary directory is this one or below it."""
    live = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(
                "TMPDIR", ""
            ).startswith(around["TMPDIR"]):
                live.append(process)
    return live


def guard(around: dict[str, str]) -> psutil.Process:
    """Return the guard. Only it and its worker have that command line."""
    guards = [
        process for process in processes(around) if "runner.guard" in " ".join(process.cmdline())
    ]
    return next(process for process in guards if set(process.children()) & set(guards))


def wait_for(met: Callable[[], object], description: str, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until, description
        time.sleep(0.05)


def test_results_come_back_case_by_case_with_their_node(
    tmp_path: Path, around: dict[str, str], affected_target: Path
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    cases = (
        version_case(tmp_path / "cases", "one"),
        version_case(tmp_path / "cases", "two", flag=flag),
    )
    answers = ask(pack(Batch(str(affected_target), cases, {}), RunOptions(), Needs()), around)
    first = next(answers)
    assert ([result.case_id for result in first.run.results], first.last) == (["one"], False)
    flag.unlink()
    *_, last = replies = [first, *answers]
    assert (last.state, last.last) == (BatchState.FINISHED, True)
    results = [result for reply in replies for result in reply.run.results]
    assert [(result.case_id, result.verdict) for result in results] == [
        ("one", Verdict.REPRODUCED),
        ("two", Verdict.REPRODUCED),
    ]
    assert {result.node["node"] for result in results} == {"here"}
    assert "documented failures" in last.log


@pytest.mark.parametrize(
    "blocked", [set(), {signal.SIGINT, signal.SIGTERM}], ids=["plain", "signals blocked"]
)
def test_the_guard_ends_and_cleans_up_when_the_requester_disconnects(
    tmp_path: Path, around: dict[str, str], affected_target: Path, blocked: set[signal.Signals]
) -> None:
    """Ray's workers block signals, and their children inherit that."""
    flag, note = tmp_path / "flag", tmp_path / "note"
    flag.touch()
    case = version_case(tmp_path / "cases", "one", flag=flag, note=note)
    request = pack(Batch(str(affected_target), (case,), {}), RunOptions(), Needs())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        assert list(ask(request, around, keep_running=lambda: not note.exists())) == []
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    probe = int(note.read_text())
    wait_for(lambda: not psutil.pid_exists(probe), "the probe has ended")
    wait_for(lambda: not list((tmp_path / "tmp").glob(f"{PREFIX}*")), "no folder is left")


@pytest.mark.parametrize("folders", range(4))
def test_nothing_is_left_whenever_the_requester_leaves(
    tmp_path: Path,
    around: dict[str, str],
    affected_target: Path,
    monkeypatch: pytest.MonkeyPatch,
    folders: int,
) -> None:
    """At the start, or when the worker has just made its first, second or third folder."""
    monkeypatch.setattr(guard_module, "REQUESTER_POLL_S", 0.001)
    case = version_case(tmp_path / "cases", "one")
    request = pack(Batch(str(affected_target), (case,), {}), RunOptions(), Needs())
    temporary = tmp_path / "tmp"
    list(
        ask(
            request,
            around,
            keep_running=lambda: (
                len(list(temporary.glob(f"{PREFIX}*"))) < max(folders, 1) and folders > 0
            ),
        )
    )
    wait_for(lambda: not processes(around), "no process is left")
    assert not list(temporary.glob(f"{PREFIX}*"))


@pytest.mark.parametrize("victim", ["worker", "pytest"])
def test_the_guard_cleans_up_after_a_killed_process(
    tmp_path: Path, around: dict[str, str], affected_target: Path, victim: str
) -> None:
    flag, note = tmp_path / "flag", tmp_path / "note"
    flag.touch()
    cases = (
        version_case(tmp_path / "cases", "one"),
        version_case(tmp_path / "cases", "two", flag=flag, note=note),
    )
    answers = ask(pack(Batch(str(affected_target), cases, {}), RunOptions(), Needs()), around)
    next(answers)
    wait_for(note.exists, "the second one waits")
    worker = guard(around).children()[0]
    (worker if victim == "worker" else next(process for process in worker.children())).kill()
    *_, last = answers
    assert (last.state, last.run.results) == (BatchState.LOST, ())
    assert (
        "something has killed it" if victim == "worker" else "pytest was killed (SIGKILL)"
    ) in last.why
    wait_for(lambda: not processes(around), "no process is left")
    assert not list((tmp_path / "tmp").glob(f"{PREFIX}*"))


def test_everything_ends_when_the_guard_is_killed(
    tmp_path: Path, around: dict[str, str], affected_target: Path
) -> None:
    flag, note = tmp_path / "flag", tmp_path / "note"
    flag.touch()
    case = version_case(tmp_path / "cases", "one", flag=flag, note=note)
    answers = ask(
        pack(Batch(str(affected_target), (case,), {}), RunOptions(), Needs()),
        around,
        keep_running=lambda: True,
    )
    reader = threading.Thread(target=lambda: list(answers))
    reader.start()
    wait_for(note.exists, "the case waits")
    guard(around).kill()
    reader.join(60)
    wait_for(lambda: not processes(around), "no process is left")
    assert not reader.is_alive()


def test_a_request_without_cases_builds_and_one_without_disk_space_is_lost(
    around: dict[str, str], affected_target: Path
) -> None:
    (built,) = ask(BatchRequest(str(affected_target)), around)
    assert (built.state, built.run.results) == (BatchState.FINISHED, ())
    (reply,) = ask(BatchRequest(str(affected_target), needs=Needs(disk_bytes=1 << 60)), around)
    assert reply.state is BatchState.LOST
    assert "GiB free" in reply.why
    (nowhere,) = ask(BatchRequest("/nowhere/bin/python"), around)
    assert nowhere.state is BatchState.LOST
    assert "no such interpreter" in nowhere.why
