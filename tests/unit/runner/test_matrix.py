"""``vllm-regress matrix``: parallel within bounds, resumable after any end, honest about what could not be built."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases import results
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import BuildError, UsageError
from pytest_vllm_regress.runner import matrix
from pytest_vllm_regress.runner import runner as runs
from pytest_vllm_regress.runner.carrier import LocalThreads
from pytest_vllm_regress.runner.journal import Journal
from tests.helpers.cases import CaseFile

OLD, NEW = ("vllm-0.8.4",), ("vllm-0.10.2",)
PROBE = """
import os
def version():
    import vllm
    return vllm.__version__
def wait(flag):
    if os.path.exists(flag):
        import signal; signal.pause()
    return True
"""


@pytest.fixture
def cases(tmp_path: Path) -> tuple[Case, ...]:
    return tuple(
        CaseFile(name, pattern="expected", old=OLD, new=NEW).write(tmp_path / "cases") for name in ("one", "two")
    )


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setattr("pytest_vllm_regress.cases.proof.lock_of", lambda environment: environment)
    return Journal(tmp_path / "journal", ["key"])


class FakePytest:
    """Stands for the pytest processes: remembers what ran and how many at once; ``interrupt_in``: an environment whose run is interrupted."""

    def __init__(self, interrupt_in: str = "") -> None:
        self.ran: list[tuple[str, tuple[str, ...]]] = []
        self.most = 0
        self.now = 0
        self.interrupt_in = interrupt_in
        self.lock = threading.Lock()
        self.meeting = threading.Barrier(2)
        self.stopping = threading.Event()

    def __call__(self, log: object, command: Sequence[str], environment: Mapping[str, str]) -> int:
        options = dict(part.split("=", 1) for part in command if part.startswith("--vllm-"))
        name, report = options["--vllm-env"], Path(options["--vllm-report"])
        ids = tuple(Path(part).name for part in command if part.startswith("/") and Path(part, "case.toml").exists())
        with self.lock:
            self.ran.append((name, ids))
            self.now += 1
            self.most = max(self.most, self.now)
        if "together" in name:
            self.meeting.wait(10)
        found = tuple(TestResult(case, f"{case}::test", Verdict.FIXED, "passed", "sim", name) for case in ids)
        if name == self.interrupt_in:
            results.write(report, RunResult(found[:1]))
            os.kill(os.getpid(), signal.SIGINT)
            assert self.stopping.wait(10)  # a real pytest has engines to end first
            return 2
        results.write(report, RunResult(found))
        with self.lock:
            self.now -= 1
        return 0


def job(name: str, cases: tuple[Case, ...]) -> runs.Job:
    return runs.Job(name, cases, {})


def run(
    journal: Journal,
    fake: FakePytest,
    jobs: Sequence[runs.Job],
    at_once: int = 1,
    build: Callable[[str], None] = lambda name: None,
) -> runs.Outcome:
    carrier = LocalThreads(build, at_once, lambda line: None, fake)
    fake.stopping = carrier.stopping
    return matrix.Matrix(carrier, runs.Options(), journal, lambda line: None).run(jobs)


def test_all_cells_and_no_more_at_once_than_asked(cases: tuple[Case, ...], journal: Journal) -> None:
    fake = FakePytest()
    outcome = run(journal, fake, [job(f"together-{number}", cases) for number in range(4)], at_once=2)
    assert (outcome.exit_code, len(outcome.run.results), fake.most) == (0, 8, 2)


def test_one_more_where_there_is_room(cases: tuple[Case, ...], journal: Journal) -> None:
    """Two wait for each other, and one at a time is asked for: only who is let in beside the first can end it."""
    asked, fake = [], FakePytest()

    def spare(running: int) -> bool:
        asked.append(running)
        return len(asked) > 2

    carrier = LocalThreads(lambda name: None, 1, lambda line: None, fake, spare)
    outcome = matrix.Matrix(carrier, runs.Options(), journal, lambda line: None).run(
        [job(f"together-{number}", cases) for number in range(2)]
    )
    assert (outcome.exit_code, fake.most, asked[:3]) == (0, 2, [1, 1, 1])


def test_the_first_begins_and_then_the_longest(cases: tuple[Case, ...], journal: Journal) -> None:
    length = {"a": 10.0, "b": 20.0, "c": 90.0}
    fake = FakePytest()
    carrier = LocalThreads(lambda name: None, 1, lambda line: None, fake, seconds=lambda case, name: length[name])
    outcome = matrix.Matrix(carrier, runs.Options(), journal, lambda line: None).run(
        [job(each, cases) for each in length]
    )
    assert [name for name, _ in fake.ran] == ["a", "c", "b"]
    assert [result.environment for result in outcome.run.results] == ["a", "a", "b", "b", "c", "c"]


def test_long_cases_of_one_environment_run_side_by_side(
    cases: tuple[Case, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_vllm_regress.cases.proof.lock_of", lambda environment: environment)
    monkeypatch.setattr("pytest_vllm_regress.runner.shards.UNKNOWN_S", 300.0)
    commands: list[Sequence[str]] = []
    fake = FakePytest()

    def start(log: object, command: Sequence[str], environment: Mapping[str, str]) -> int:
        commands.append(command)
        return fake(log, command, environment)

    monkeypatch.setattr(
        matrix, "LocalThreads", lambda build, at_once, say, spare: LocalThreads(build, at_once, say, start, spare)
    )
    said: list[str] = []
    built: list[str] = []
    outcome = matrix.side_by_side([job("together", cases)], 2, built.append, runs.Options(), said.append)
    assert built == ["together"]
    assert fake.most == 2 and sorted(fake.ran) == [("together", ("one",)), ("together", ("two",))]
    assert said == ["[1/2] together: one", "[2/2] together: two"]
    assert [(each.case_id, each.verdict) for each in outcome.run.results] == [
        ("one", Verdict.FIXED),
        ("two", Verdict.FIXED),
    ]
    assert not any("-n" in command for command in commands)


def test_a_job_of_two_workers_counts_as_two(cases: tuple[Case, ...], journal: Journal) -> None:
    fake, asked = FakePytest(), []

    def spare(running: int) -> bool:
        asked.append(running)
        return False

    jobs = [dataclasses.replace(job("a", cases[:1]), workers="2"), job("b", cases[1:])]
    carrier = LocalThreads(lambda name: None, 2, lambda line: None, fake, spare)
    assert matrix.Matrix(carrier, runs.Options(), journal, lambda line: None).run(jobs).exit_code == 0
    assert asked[0] == 2
    assert [name for name, _ in fake.ran] == ["a", "b"]


def test_an_environment_that_cannot_be_built_stops_no_other(cases: tuple[Case, ...], journal: Journal) -> None:
    def build(name: str) -> None:
        if name == "b":
            raise BuildError("no such release")

    outcome = run(journal, FakePytest(), [job(name, cases) for name in "abc"], build=build)
    assert outcome.exit_code == 3
    assert outcome.unbuilt == ("b",)
    assert {r.environment for r in outcome.run.results if r.verdict is Verdict.FIXED} == {"a", "c"}
    assert run(journal, again := FakePytest(), [job(name, cases) for name in "abc"]).exit_code == 0
    assert [name for name, _ in again.ran] == ["b"]


def test_interrupted_it_loses_nothing_that_was_finished(cases: tuple[Case, ...], journal: Journal) -> None:
    jobs = [job(name, cases) for name in "abc"]
    outcome = run(journal, FakePytest(interrupt_in="b"), jobs)
    assert outcome.exit_code == 130
    assert {(r.environment, r.case_id) for r in outcome.run.results} == {("a", "one"), ("a", "two"), ("b", "one")}
    fake = FakePytest()
    outcome = run(journal, fake, jobs)
    assert fake.ran == [("b", ("two",)), ("c", ("one", "two"))]
    assert (outcome.exit_code, len(outcome.run.results)) == (0, 6)


def test_a_changed_case_is_run_again(cases: tuple[Case, ...], journal: Journal) -> None:
    run(journal, FakePytest(), [job("a", cases)])
    (cases[0].directory / "test_new.py").write_text("")
    run(journal, fake := FakePytest(), [job("a", cases)])
    assert fake.ran == [("a", ("one",))]


def test_a_damaged_journal_is_run_again(cases: tuple[Case, ...], journal: Journal) -> None:
    run(journal, FakePytest(), [job("a", cases)])
    next(journal.directory.glob("*.json")).write_text("{")
    assert len(journal.finished(job("a", cases)).results) == 1


def test_named_environments(cases: tuple[Case, ...]) -> None:
    assert matrix.named_environments(cases, [], None) == ["vllm-0.8.4", "vllm-0.10.2"]
    assert matrix.named_environments(cases, ["x"], None) == ["x"]
    assert matrix.named_environments(cases, [], ">=0.8.3,<0.8.5")[0] == "vllm-0.8.3"
    for wrong in ("new", ">99"):
        with pytest.raises(UsageError, match="--versions"):
            matrix.named_environments(cases, [], wrong)
    with pytest.raises(UsageError, match="contradict"):
        matrix.named_environments(cases, ["x"], ">0")


def test_killed_and_resumed_for_real(
    cases: tuple[Case, ...], affected_target: Path, fixed_target: Path, tmp_path: Path
) -> None:
    """SIGKILL in the middle of the second case: its pytest ends too, and the first case is not run again."""
    flag = tmp_path / "flag"
    flag.touch()
    for number, case in enumerate(cases):
        (case.directory / "probe.py").write_text(PROBE)
        body = (
            f"vllm_probe('wait', flag={str(flag)!r})"
            if number
            else "vllm_probe('version') != '0.8.4', 'expected another'"
        )
        text = f"import pytest\n@pytest.mark.vllm_case({case.id!r})\ndef test_it(vllm_probe):\n    assert {body}\n"
        (case.directory / f"test_{case.id}.py").write_text(text)
    CaseFile("two", pattern="expected", affected="<0.1").write(tmp_path / "cases")
    environment = {**os.environ, "VLLM_REGRESS_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "pytest_vllm_regress", "--cases", str(cases[0].directory.parent), "matrix"]
    command += ["--jobs", "1", "--env", str(affected_target), "--env", str(fixed_target)]
    command += ["--results", str(tmp_path / "r.json"), "--html", str(tmp_path / "p.html")]
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    watched = psutil.Process(first.pid)
    partial = None
    while partial is None:  # the first case is finished, the second one waits
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0.1)
        partial = next((p for p in (tmp_path / "cache" / "matrix").rglob("*.part.json") if p.exists()), None)
    below = watched.children(recursive=True)
    assert below
    first.kill()
    first.wait()
    assert psutil.wait_procs(below, timeout=30)[1] == []
    flag.unlink()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, textwrap.indent(done.stdout + done.stderr, "  ")
    assert "1 cell is finished by an interrupted run" in done.stdout
    found = json.loads((tmp_path / "r.json").read_text())["results"]
    assert sorted(each["verdict"] for each in found) == ["FIXED", "FIXED", "FIXED", "REPRODUCED"]
    assert "<html" in (tmp_path / "p.html").read_text()
    assert not list((tmp_path / "cache" / "matrix").iterdir())


def test_bad_input_ends_with_2(cases: tuple[Case, ...], capsys: pytest.CaptureFixture[str]) -> None:
    root = str(cases[0].directory.parent)
    for arguments in (["--env", "/nowhere/python"], ["--versions", "new"], ["--device", "tpu"], ["none"]):
        assert cli.main(["--cases", root, "matrix", *arguments]) == 2
        assert "Traceback" not in capsys.readouterr().err
