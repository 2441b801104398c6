"""``vllm-regress run``: which cases run where, how a failing pytest is reported, and that nothing
passes silently."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.results import RunResult, TestResult, append_results, read_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import BuildError, UsageError
from pytest_vllm_regress.runner.batch import Batch, RunOptions, RunOutcome
from pytest_vllm_regress.runner.executors import SequentialExecutor, check_environments
from pytest_vllm_regress.runner.plan import plan_batches
from pytest_vllm_regress.runner.progress import BatchHeaders
from pytest_vllm_regress.runner.pytest_run import StartCommand, run_command
from pytest_vllm_regress.runner.run import KEPT_COPIES, BatchRunner, save_results
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile

MakeCase = Callable[..., Case]


@pytest.fixture
def make_case(tmp_path: Path) -> MakeCase:
    def make(
        name: str, affected: Sequence[str] = ("old",), fixed: Sequence[str] = ("new",)
    ) -> Case:
        return CaseFile(name, old=affected, new=fixed).write(tmp_path / "cases")

    return make


def result(case: Case, environment: str, verdict: Verdict) -> TestResult:
    return TestResult(case.id, f"{case.id}/test_x.py::test", verdict, "seen", "sim", environment)


class FakePytest:
    """Stand-in for the pytest processes, with a report and an exit status per environment."""

    def __init__(self, answers: Mapping[str, tuple[RunResult | bytes | None, int]]) -> None:
        self._answers = answers
        self.commands: list[list[str]] = []
        self.environments: list[Mapping[str, str]] = []

    def __call__(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        self.commands.append(list(command))
        self.environments.append(environment)
        options = dict(part.split("=", 1) for part in command if part.startswith("--vllm-"))
        content, status = self._answers[options["--vllm-env"]]
        if isinstance(content, RunResult):
            append_results(Path(options["--vllm-report"]), content)
        elif content is not None:
            Path(options["--vllm-report"]).write_bytes(content)
        return status


def run(
    batches: Sequence[Batch],
    answers: Mapping[str, tuple[RunResult | bytes | None, int]],
    options: RunOptions | None = None,
    build: Callable[[str], None] = lambda name: None,
) -> tuple[RunOutcome, FakePytest]:
    fake = FakePytest(answers)
    return sequential(build, fake, options).run(batches), fake


def sequential(
    build: Callable[[str], None], start: StartCommand, options: RunOptions | None = None
) -> BatchRunner:
    executor = SequentialExecutor(build, start)
    return BatchRunner(executor, options or RunOptions(), lambda: BatchHeaders(lambda line: None))


def test_plan_groups_by_environment(make_case: MakeCase) -> None:
    a = make_case("a", ["old", "older"], ["new"])
    b = make_case("b", ["old2"], ["new", "newer"])
    batches = plan_batches([a, b])
    assert [
        (batch.environment, [c.id for c in batch.cases], dict(batch.roles)) for batch in batches
    ] == [
        ("old", ["a"], {"a": "affected"}),
        ("old2", ["b"], {"b": "affected"}),
        ("new", ["a", "b"], {"a": "fixed", "b": "fixed"}),
    ]
    assert [batch.environment for batch in plan_batches([a, b], all_evidence=True)] == [
        "old",
        "older",
        "old2",
        "new",
        "newer",
    ]
    named = plan_batches([a, b], ["x", "/usr/bin/python", "x"])
    assert [(batch.environment, len(batch.cases), dict(batch.roles)) for batch in named] == [
        ("x", 2, {}),
        ("/usr/bin/python", 2, {}),
    ]


def test_plan_of_a_case_without_evidence(make_case: MakeCase) -> None:
    with pytest.raises(UsageError, match="no evidence environments in a: name one with --env NAME"):
        plan_batches([make_case("a", [], []), make_case("b")])


def test_expected_verdicts_exit_with_0(make_case: MakeCase) -> None:
    case = make_case("a")
    outcome, fake = run(
        plan_batches([case]),
        {
            "old": (RunResult((result(case, "old", Verdict.REPRODUCED),)), 0),
            "new": (RunResult((result(case, "new", Verdict.FIXED),)), 0),
        },
        RunOptions("sim", "2", ("-k", "x")),
    )
    assert outcome.exit_code == 0
    assert outcome.run.results[0].command == "vllm-regress run a --env old --device sim"
    command = fake.commands[0]
    in_order = ["-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    assert command[-8:] == ["--vllm-device=sim", *in_order, "-k", "x"]
    assert str(case.directory) in command
    assert "no:cacheprovider" in command
    assert fake.environments[0]["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"
    assert fake.environments[0]["HYPOTHESIS_NO_PLUGINS"] == "1"
    assert not set(fake.environments[0]) & {
        "PYTEST_ADDOPTS",
        "PYTEST_PLUGINS",
        "PYTEST_CURRENT_TEST",
    }


@pytest.mark.parametrize(
    ("old", "new", "code", "because"),
    [
        (
            Verdict.NOT_APPLICABLE,
            Verdict.FIXED,
            1,
            "old is evidence that the case is REPRODUCED, and it was NOT_APPLICABLE",
        ),
        (
            Verdict.FIXED,
            Verdict.FIXED,
            1,
            "old is evidence that the case is REPRODUCED, and it was FIXED",
        ),
        (
            Verdict.REPRODUCED,
            Verdict.REPRODUCED,
            1,
            "new is evidence that the case is FIXED, and it was REPRODUCED",
        ),
        (
            Verdict.REPRODUCED,
            Verdict.NOT_APPLICABLE,
            1,
            "new is evidence that the case is FIXED, and it was NOT_APPLICABLE",
        ),
        (Verdict.UNEXPECTEDLY_FIXED, Verdict.FIXED, 1, ""),
        (Verdict.REPRODUCED, Verdict.REGRESSED, 1, ""),
    ],
)
def test_evidence_must_show_its_side(
    make_case: MakeCase, old: Verdict, new: Verdict, code: int, because: str
) -> None:
    case = make_case("a")
    answers = {
        name: (RunResult((result(case, name, verdict),)), 0)
        for name, verdict in (("old", old), ("new", new))
    }
    outcome, _ = run(plan_batches([case]), answers)
    assert outcome.exit_code == code
    assert [r.not_expected_because for r in outcome.run.results if r.not_expected_because] == (
        [because] if because else []
    )


def test_a_variant_that_is_not_affected_does_not_spoil_the_evidence(make_case: MakeCase) -> None:
    case = make_case("a", fixed=[])
    both = (
        result(case, "old", Verdict.REPRODUCED),
        replace(result(case, "old", Verdict.FIXED), test="other"),
    )
    assert run(plan_batches([case]), {"old": (RunResult(both), 0)})[0].exit_code == 0


def test_named_environments_expect_what_the_verdict_says(make_case: MakeCase) -> None:
    case = make_case("a")
    for verdict, status in ((Verdict.FIXED, 0), (Verdict.REGRESSED, 1)):
        answers = {"x": (RunResult((result(case, "x", verdict),)), 0)}
        assert run(plan_batches([case], ["x"]), answers)[0].exit_code == status


def test_a_run_that_decides_nothing_is_no_success(make_case: MakeCase) -> None:
    case = make_case("a")
    answers = {"x": (RunResult((result(case, "x", Verdict.NOT_APPLICABLE),)), 0)}
    assert run(plan_batches([case], ["x"]), answers)[0].exit_code == 1


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (None, 0, "ended with status 0 and wrote no report"),
        (None, -9, "was ended by SIGKILL and wrote no report"),
        (None, 4, "refused its arguments and wrote no report"),
        (b"{", 0, "left no report that can be read"),
        (RunResult(), 0, "reported nothing for this case"),
        (RunResult(), 5, "found no test"),
    ],
)
def test_a_pytest_without_a_report_is_inconclusive(
    make_case: MakeCase, content: RunResult | bytes | None, status: int, words: str
) -> None:
    outcome, _ = run(
        plan_batches([make_case("a"), make_case("b")], ["x"]), {"x": (content, status)}
    )
    assert outcome.exit_code == 1
    assert [(r.case_id, r.verdict) for r in outcome.run.results] == [
        ("a", Verdict.INCONCLUSIVE),
        ("b", Verdict.INCONCLUSIVE),
    ]
    assert all(words in r.reason for r in outcome.run.results)


def test_a_pytest_that_dies_after_some_verdicts(make_case: MakeCase) -> None:
    a, b = make_case("a"), make_case("b")
    reported = RunResult((result(a, "x", Verdict.FIXED),))
    silent, _ = run(plan_batches([a, b], ["x"]), {"x": (reported, 1)})
    assert [(r.case_id, r.verdict.value) for r in silent.run.results] == [
        ("a", "FIXED"),
        ("b", "INCONCLUSIVE"),
    ]
    killed, _ = run(plan_batches([a], ["x"]), {"x": (reported, -11)})
    assert killed.exit_code == 1
    assert [r.verdict.value for r in killed.run.results] == ["FIXED"]
    assert "was ended by SIGSEGV, after all results" in killed.run.problems[0]


def test_a_failure_without_a_verdict_is_a_problem(make_case: MakeCase) -> None:
    case = make_case("a")
    outcome, _ = run(
        plan_batches([case], ["x"]), {"x": (RunResult((result(case, "x", Verdict.FIXED),)), 1)}
    )
    assert outcome.exit_code == 1
    assert outcome.run.problems == (
        "x: pytest failed, but no verdict says why: see its output above",
    )


def test_a_run_on_a_gpu_that_showed_nothing_is_a_problem(make_case: MakeCase) -> None:
    case = make_case("a")
    skipped = replace(result(case, "x", Verdict.NOT_APPLICABLE), device="gpu")
    outcome, _ = run(plan_batches([case], ["x"]), {"x": (RunResult((skipped,)), 1)})
    assert outcome.exit_code == 1
    assert outcome.run.problems == ("x: nothing was shown on a GPU: every case was NOT_APPLICABLE",)


def test_results_of_other_cases_do_not_count(make_case: MakeCase) -> None:
    a, b = make_case("a"), make_case("b")
    outcome, _ = run(
        plan_batches([a], ["x"]), {"x": (RunResult((result(b, "x", Verdict.FIXED),)), 0)}
    )
    assert [(r.case_id, r.verdict.value) for r in outcome.run.results] == [("a", "INCONCLUSIVE")]


def test_an_environment_that_cannot_be_built(make_case: MakeCase) -> None:
    case = make_case("a")

    def build(name: str) -> None:
        if name == "old":
            raise BuildError("no solution for ray==9")

    outcome, fake = run(
        plan_batches([case]),
        {"new": (RunResult((result(case, "new", Verdict.FIXED),)), 0)},
        build=build,
    )
    assert outcome.exit_code == 3
    assert outcome.unbuilt == ("old",)
    assert len(fake.commands) == 1
    assert "could not be built: see the problem below" in outcome.run.results[0].reason
    assert [problem for problem in outcome.run.problems if "no solution for ray==9" in problem]


def test_an_interruption_exits_with_130(make_case: MakeCase) -> None:
    def start(command: Sequence[str], environment: Mapping[str, str]) -> int:
        raise KeyboardInterrupt

    outcome = sequential(lambda name: None, start).run(plan_batches([make_case("a")]))
    assert outcome.exit_code == 130


def test_verdicts_reached_before_the_interruption_are_kept(make_case: MakeCase) -> None:
    a, b = make_case("a"), make_case("b")

    def start(command: Sequence[str], environment: Mapping[str, str]) -> int:
        report = next(part for part in command if part.startswith("--vllm-report=")).partition("=")[
            2
        ]
        append_results(Path(report), RunResult((result(a, "x", Verdict.FIXED),)))
        raise KeyboardInterrupt

    outcome = sequential(lambda name: None, start).run(plan_batches([a, b], ["x"]))
    assert outcome.exit_code == 130
    assert [(r.case_id, r.verdict.value) for r in outcome.run.results] == [("a", "FIXED")]
    assert "interrupted" in outcome.run.problems[0]


BOTH = """
import os, time
import pytest

pytestmark = pytest.mark.vllm_case("{id}")

def test_case(vllm_probe):
    assert vllm_probe("{function}") == 1
"""
WORK = """
import os, time

def fine():
    return 1

def work():
    open(os.environ["ARMED"], "w").close()
    time.sleep(600)
"""


def test_ctrl_c_in_the_second_case_keeps_the_first(
    make_case: MakeCase, tmp_path: Path, fixed_target: Path
) -> None:
    """``run a b``, Ctrl-C in b: the table and the result file have a."""
    for name, function in (("a", "fine"), ("b", "work")):
        folder = make_case(name).directory
        (folder / f"test_{name}.py").write_text(BOTH.format(id=name, function=function))
        (folder / "probe.py").write_text(WORK)
    command = [
        sys.executable,
        "-m",
        "pytest_vllm_regress",
        "--cases",
        str(tmp_path / "cases"),
        "run",
        "a",
        "b",
    ]
    command += ["--env", str(fixed_target), "--out", str(tmp_path / "out.json")]
    environment = {
        **os.environ,
        "ARMED": str(tmp_path / "armed"),
        "VLLM_REGRESS_CACHE": str(tmp_path / "cache"),
    }
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_for((tmp_path / "armed").exists, 60)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert [(r.case_id, r.verdict.value) for r in read_results(tmp_path / "out.json").results] == [
        ("a", "FIXED")
    ]
    assert re.search(r"^a .*fixed", output, re.M)


def test_results_are_saved_and_old_copies_removed(make_case: MakeCase, tmp_path: Path) -> None:
    reported = RunResult((result(make_case("a"), "x", Verdict.FIXED),))
    output: list[str] = []
    for second in range(KEPT_COPIES + 3):
        written = save_results(
            reported, tmp_path / "out", tmp_path / "cache", output.append, now=float(second)
        )
    assert written is not None
    assert read_results(written) == reported
    assert len(list((tmp_path / "cache").iterdir())) == KEPT_COPIES
    assert (
        save_results(reported, tmp_path / "one.json", tmp_path / "cache", output.append)
        == tmp_path / "one.json"
    )
    (tmp_path / "file").touch()
    assert save_results(reported, None, tmp_path / "file" / "x", output.append) is None
    assert "no copy was kept" in output[-1]


def test_an_unknown_interpreter_is_refused(make_case: MakeCase) -> None:
    with pytest.raises(UsageError, match="--env /nowhere/python: no such interpreter"):
        check_environments(plan_batches([make_case("a")], ["/nowhere/python"]))


def test_output_goes_to_standard_error_where_ours_is_for_programs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    command = [sys.executable, "-c", "import sys; print('said'); print('warned', file=sys.stderr)"]
    assert run_command(command, os.environ, output=sys.stderr.buffer) == 0
    assert capfd.readouterr() == ("", "said\nwarned\n")


def test_run_command_ends_with_its_parent(tmp_path: Path) -> None:
    """SIGTERM, SIGHUP and SIGKILL to the runner end the command it runs; all but SIGKILL let it
    clean up first."""
    child = (
        "import signal, sys, time; from pathlib import Path; p = Path(sys.argv[1]); (p / 'up').write_text('up')\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: (p / 'cleaned').write_text('')\n"
    )
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        place = tmp_path / number.name
        _end_runner_of(child, place, number)
        assert (place / "cleaned").exists() is (number != signal.SIGKILL)
        _wait_for(functools.partial(_ended, str(place)))


def _end_runner_of(child: str, place: Path, number: signal.Signals) -> None:
    """Run ``child``, send its runner ``number`` once the child has written the file ``up`` in
    ``place``, and wait for the runner to end."""
    place.mkdir()
    parent = (
        "import os, sys; from pytest_vllm_regress.runner.pytest_run import run_command\n"
        "from pytest_vllm_regress.util.signals import terminate_as_interrupt\n"
        "with terminate_as_interrupt():\n"
        "    run_command([sys.executable, '-c', sys.argv[1], sys.argv[2]], os.environ)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent, child, str(place)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait_for(lambda: (place / "up").exists() and (place / "up").read_text() != "")
    process.send_signal(number)
    process.wait(60)


def _ended(word: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if int(path.parent.name) != os.getpid() and word.encode() in path.read_bytes():
                return False
        except OSError:
            continue
    return True


def _wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
