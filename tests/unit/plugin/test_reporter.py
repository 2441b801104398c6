"""Verdicts on their way from a test's report to terminal, xdist and file."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.cases.results import TestResult, read_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.engines.processes.child_processes import Leftover
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.plugin.reporter import ATTRIBUTE, Recorder
from pytest_vllm_regress.plugin.state import SESSION, SETTINGS
from tests.unit.plugin.conftest import report


def result(verdict: Verdict = Verdict.REPRODUCED, environment: str = "old") -> TestResult:
    return TestResult(
        "demo", "test_demo.py::test_demo", verdict, "seen", "sim", environment, {"vllm": "0.8.4"}
    )


def judged(
    verdict: Verdict = Verdict.REPRODUCED, outcome: str = "failed", when: str = "call"
) -> Any:
    test_report = report(outcome, when)
    setattr(test_report, ATTRIBUTE, result(verdict))
    return test_report


def recorder(**settings: Any) -> Recorder:
    stash = pytest.Stash()
    stash[SETTINGS] = Settings(**settings)
    return Recorder(SimpleNamespace(stash=stash))  # type: ignore[arg-type]


def through(wrapper: Generator[None, Any, Any], value: Any) -> Any:
    """Return what a hook wrapper makes of the inner hooks' result."""
    next(wrapper)
    with pytest.raises(StopIteration) as done:
        wrapper.send(value)
    return done.value.value


def test_between_the_processes_of_xdist_a_verdict_is_json() -> None:
    data = through(
        recorder().pytest_report_to_serializable(), {ATTRIBUTE: result(), "outcome": "failed"}
    )
    sent = json.loads(json.dumps(data))
    assert sent[ATTRIBUTE]["verdict"] == "REPRODUCED" and sent["outcome"] == "failed"
    arrived = report("failed")
    setattr(arrived, ATTRIBUTE, sent[ATTRIBUTE])
    assert (
        getattr(through(recorder().pytest_report_from_serializable(), arrived), ATTRIBUTE)
        == result()
    )


def test_reports_of_other_tests_pass_unchanged() -> None:
    assert through(recorder().pytest_report_to_serializable(), None) is None
    assert through(recorder().pytest_report_to_serializable(), {"outcome": "passed"}) == {
        "outcome": "passed"
    }
    other = report()
    assert through(recorder().pytest_report_from_serializable(), other) is other and not hasattr(
        other, ATTRIBUTE
    )
    assert recorder().pytest_report_teststatus(other) is None


@pytest.mark.parametrize(
    ("verdict", "outcome", "when", "category", "letter", "colour"),
    [
        (Verdict.FIXED, "passed", "call", "passed", ".", "green"),
        (Verdict.NOT_APPLICABLE, "skipped", "setup", "skipped", "s", "yellow"),
        (Verdict.REGRESSED, "failed", "call", "failed", "F", "red"),
        (Verdict.INCONCLUSIVE, "failed", "setup", "error", "E", "red"),
    ],
)
def test_the_word_is_the_verdict_and_letter_and_category_are_pytests(
    verdict: Verdict, outcome: str, when: str, category: str, letter: str, colour: str
) -> None:
    status = recorder().pytest_report_teststatus(judged(verdict, outcome, when))
    assert status == (category, letter, (verdict.value, {colour: True}))


@pytest.mark.parametrize(
    ("impostors", "sections"), [(None, ["left behind by engines (removed)"]), ("folder", [])]
)
def test_what_an_impostor_made_an_engine_leave_behind_is_not_shown(
    impostors: str | None, sections: list[str]
) -> None:
    stash = pytest.Stash()
    stash[SETTINGS] = Settings()
    left = (Leftover("shared memory", "/dev/shm/psm_1"),)
    stash[SESSION] = SimpleNamespace(leftover_reports=[("test_demo.py::test_demo", left)])  # type: ignore[misc]
    config = SimpleNamespace(stash=stash, getoption={"vllm_impostors": impostors}.get)
    shown: list[str] = []
    terminal = SimpleNamespace(section=shown.append, write_line=lambda line: None)
    Recorder(config).pytest_terminal_summary(terminal)  # type: ignore[arg-type]
    assert shown == sections


def test_a_documented_failure_is_an_expected_one() -> None:
    known = judged(outcome="skipped")
    known.wasxfail = "REPRODUCED: seen"
    assert recorder().pytest_report_teststatus(known) == (
        "xfailed",
        "x",
        ("REPRODUCED", {"yellow": True}),
    )


def run_protocol(reporter: Recorder, item: Path, nextitem: Path | None) -> None:
    items = [SimpleNamespace(path=path) if path else None for path in (item, nextitem)]
    through(reporter.pytest_runtest_protocol(*items), True)  # type: ignore[arg-type]


def test_the_file_is_written_after_each_case_and_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    reporter = recorder(report=file)
    first, second = Path("/cases/one/test_a.py"), Path("/cases/two/test_b.py")
    run_protocol(reporter, first, second)
    assert not file.exists()  # nothing has a verdict yet
    reporter.pytest_runtest_logreport(judged())
    run_protocol(reporter, first, first.with_name("test_c.py"))
    assert not file.exists()  # the case has another test
    run_protocol(reporter, first, second)
    assert read_results(file).results == (result(),)
    reporter.pytest_runtest_logreport(report())
    reporter.pytest_runtest_logreport(judged(Verdict.FIXED))
    reporter.pytest_sessionfinish(SimpleNamespace(exitstatus=pytest.ExitCode.OK))  # type: ignore[arg-type]
    assert [written.verdict for written in read_results(file).results] == [
        Verdict.REPRODUCED,
        Verdict.FIXED,
    ]


@pytest.mark.parametrize("with_workers", [False, True])
@pytest.mark.parametrize("status", [pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR])
def test_a_run_that_was_broken_off_leaves_out_a_case_of_which_a_test_is_missing(
    tmp_path: Path, with_workers: bool, status: pytest.ExitCode
) -> None:
    file = tmp_path / "report.json"
    reporter = recorder(report=file)
    tests = [
        "cases/one/test_a.py::test[1]",
        "cases/two/test_b.py::test[1]",
        "cases/two/test_b.py::test[2]",
    ]
    if with_workers:
        for _ in range(2):
            reporter.pytest_xdist_node_collection_finished(tests)
    else:
        items = [SimpleNamespace(nodeid=test) for test in tests]
        reporter.pytest_collection_finish(SimpleNamespace(items=items))  # type: ignore[arg-type]
    for test, verdict in zip(tests[:2], (Verdict.REPRODUCED, Verdict.FIXED), strict=True):
        for known in (judged(verdict), report(when="teardown")):
            known.nodeid = test
            reporter.pytest_runtest_logreport(known)
    reporter.pytest_sessionfinish(SimpleNamespace(exitstatus=status))  # type: ignore[arg-type]
    assert [written.verdict for written in read_results(file).results] == [Verdict.REPRODUCED]


def test_a_worker_writes_nothing(tmp_path: Path) -> None:
    reporter = recorder(report=tmp_path / "report.json")
    reporter._config.workerinput = {}  # type: ignore[attr-defined]
    reporter.pytest_runtest_logreport(judged())
    reporter.pytest_sessionfinish(SimpleNamespace(exitstatus=pytest.ExitCode.OK))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("device", "verdicts", "status"),
    [
        ("gpu", [Verdict.NOT_APPLICABLE], pytest.ExitCode.TESTS_FAILED),
        ("gpu", [Verdict.NOT_APPLICABLE, Verdict.FIXED], pytest.ExitCode.OK),
        ("gpu", [], pytest.ExitCode.OK),
        ("auto", [Verdict.NOT_APPLICABLE], pytest.ExitCode.OK),
    ],
)
def test_a_gpu_run_that_skips_everything_fails(
    device: str, verdicts: list[Verdict], status: pytest.ExitCode
) -> None:
    reporter = recorder(device=device)
    for verdict in verdicts:
        reporter.pytest_runtest_logreport(judged(verdict, "skipped"))
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    reporter.pytest_sessionfinish(session)  # type: ignore[arg-type]
    assert session.exitstatus is status


def test_the_summary_names_verdicts_and_what_was_left() -> None:
    printed: list[str] = []
    terminal: Any = SimpleNamespace(
        section=printed.append, write_line=lambda line, **_: printed.append(line)
    )
    reporter = recorder()
    reporter.pytest_terminal_summary(terminal)
    assert printed == []
    reporter.pytest_runtest_logreport(judged(Verdict.REGRESSED))
    reporter.pytest_terminal_summary(terminal)
    assert printed[0] == "documented failures"
    assert (
        printed[1].startswith("REGRESSED")
        and "demo on old, device sim (simulated device): 1 REGRESSED" in printed[1]
    )
