"""A request in, outcomes out: the same verdicts as here, whoever kills whom, and nothing left behind."""

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
from pytest_vllm_regress.runner import cell_client
from pytest_vllm_regress.runner.cell import CellOutcome, CellRequest, Needs, State
from pytest_vllm_regress.runner.cell_client import outcomes
from pytest_vllm_regress.runner.packing import pack
from pytest_vllm_regress.runner.runner import Job, Options
from pytest_vllm_regress.util.rundir import PREFIX
from tests.helpers.waiting_cases import version_case


@pytest.fixture
def around(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine of its own: another cache, and another place for temporary files."""
    (tmp_path / "tmp").mkdir()
    return {**os.environ, "VLLM_REGRESS_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}


def ask(
    request: CellRequest, around: dict[str, str], go_on: Callable[[], bool] = lambda: True
) -> Iterator[CellOutcome]:
    return map(CellOutcome.from_text, outcomes(request.to_text(), around, "here", go_on))


def processes(around: dict[str, str]) -> list[psutil.Process]:
    """Those that live and have the folder for temporary files, or one below it."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.status() != psutil.STATUS_ZOMBIE and each.environ().get("TMPDIR", "").startswith(around["TMPDIR"]):
                found.append(each)
    return found


def guard(around: dict[str, str]) -> psutil.Process:
    """It and its worker are the only ones with that command line."""
    ours = [each for each in processes(around) if "cell_process" in " ".join(each.cmdline())]
    return next(each for each in ours if set(each.children()) & set(ours))


def wait_for(met: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def test_cells_come_back_one_by_one_with_their_node(
    tmp_path: Path, around: dict[str, str], affected_target: Path
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    cases = (version_case(tmp_path / "cases", "one"), version_case(tmp_path / "cases", "two", flag=flag))
    answers = ask(pack(Job(str(affected_target), cases, {}), Options()), around)
    first = next(answers)
    assert ([each.case_id for each in first.run.results], first.last) == (["one"], False)
    flag.unlink()
    *_, last = answers
    assert (last.state, last.last) == (State.FINISHED, True)
    assert {each.case_id: each.verdict for each in last.run.results} == dict.fromkeys(
        ("one", "two"), Verdict.REPRODUCED
    )
    assert {each.node["node"] for each in last.run.results} == {"here"}
    assert "documented failures" in last.log


@pytest.mark.parametrize("blocked", [set(), {signal.SIGINT, signal.SIGTERM}], ids=["plain", "signals blocked"])
def test_without_its_asker_it_ends_and_cleans_up(
    tmp_path: Path, around: dict[str, str], affected_target: Path, blocked: set[signal.Signals]
) -> None:
    """Ray's workers block signals, and what they start inherits that."""
    flag, note = tmp_path / "flag", tmp_path / "note"
    flag.touch()
    case = version_case(tmp_path / "cases", "one", flag=flag, note=note)
    request = pack(Job(str(affected_target), (case,), {}), Options())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        assert list(ask(request, around, go_on=lambda: not note.exists())) == []
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    probe = int(note.read_text())
    wait_for(lambda: not psutil.pid_exists(probe), "the probe has ended")
    wait_for(lambda: not list((tmp_path / "tmp").glob(f"{PREFIX}*")), "no folder is left")


@pytest.mark.parametrize("folders", range(4))
def test_whenever_its_asker_leaves_nothing_stays(
    tmp_path: Path, around: dict[str, str], affected_target: Path, monkeypatch: pytest.MonkeyPatch, folders: int
) -> None:
    """At its start, or when it has just made its first, second or third folder."""
    monkeypatch.setattr(cell_client, "LOOK_S", 0.001)
    case = version_case(tmp_path / "cases", "one")
    request = pack(Job(str(affected_target), (case,), {}), Options())
    made = tmp_path / "tmp"
    list(ask(request, around, go_on=lambda: len(list(made.glob(f"{PREFIX}*"))) < max(folders, 1) and folders > 0))
    wait_for(lambda: not processes(around), "no process is left")
    assert not list(made.glob(f"{PREFIX}*"))


@pytest.mark.parametrize("victim", ["worker", "pytest"])
def test_whatever_is_killed_is_cleaned_up_behind(
    tmp_path: Path, around: dict[str, str], affected_target: Path, victim: str
) -> None:
    flag, note = tmp_path / "flag", tmp_path / "note"
    flag.touch()
    cases = (version_case(tmp_path / "cases", "one"), version_case(tmp_path / "cases", "two", flag=flag, note=note))
    answers = ask(pack(Job(str(affected_target), cases, {}), Options()), around)
    next(answers)
    wait_for(note.exists, "the second one waits")
    worker = guard(around).children()[0]
    (worker if victim == "worker" else next(each for each in worker.children())).kill()
    *_, last = answers
    assert (last.state, last.run.results) == (State.LOST, ())
    assert ("something has killed it" if victim == "worker" else "pytest was killed (SIGKILL)") in last.why
    wait_for(lambda: not processes(around), "no process is left")
    assert not list((tmp_path / "tmp").glob(f"{PREFIX}*"))


def test_without_its_guard_everything_ends(tmp_path: Path, around: dict[str, str], affected_target: Path) -> None:
    flag, note = tmp_path / "flag", tmp_path / "note"
    flag.touch()
    case = version_case(tmp_path / "cases", "one", flag=flag, note=note)
    answers = ask(pack(Job(str(affected_target), (case,), {}), Options()), around, go_on=lambda: True)
    told = threading.Thread(target=lambda: list(answers))
    told.start()
    wait_for(note.exists, "the case waits")
    guard(around).kill()
    told.join(30)
    wait_for(lambda: not processes(around), "no process is left")
    assert not told.is_alive()


def test_a_request_without_cases_builds_and_one_without_room_is_lost(
    around: dict[str, str], affected_target: Path
) -> None:
    (built,) = ask(CellRequest(str(affected_target)), around)
    assert (built.state, built.run.results) == (State.FINISHED, ())
    (lost,) = ask(CellRequest(str(affected_target), needs=Needs(disk_bytes=1 << 60)), around)
    assert lost.state is State.LOST
    assert "GiB free" in lost.why
    (nowhere,) = ask(CellRequest("/nowhere/bin/python"), around)
    assert nowhere.state is State.LOST
    assert "no such interpreter" in nowhere.why
