"""The order in which a test's legs run, the arguments of each, and what is reported."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.engines.processes.early_exit import NO_EARLY_EXIT, EarlyExitPolicy
from pytest_vllm_regress.errors import (
    ChildDied,
    Masked,
    Part,
    ScriptError,
    Unsupported,
    UsageError,
)
from pytest_vllm_regress.plugin import protocol, state
from pytest_vllm_regress.plugin.fixtures import checking_scripts
from pytest_vllm_regress.plugin.leg import CONTROL, SUBJECT, Leg
from pytest_vllm_regress.plugin.reporter import ATTRIBUTE
from pytest_vllm_regress.plugin.state import LEG, SESSION
from tests.helpers.cases import CaseFile
from tests.unit.plugin.conftest import MakeItem, report

CRASH = CaseFile(
    kind="crash", omits="the pool", pattern="boom", control="pool = 0\nprobe = { n = 1 }"
)
HANG = CaseFile(kind="hang", omits="the pool", pattern="boom", symptom='where = "log"')
LOGGED_HANG = CaseFile(kind="hang", omits="the pool", pattern="waiting")
Behaviour = Callable[[Any, Leg], None]


def crash(item: Any, leg: Leg) -> None:
    leg.error = ChildDied(
        "gone", phase="probe", parts={Part.LOG: Masked("boom"), Part.EXIT: Masked("boom")}
    )


def works(item: Any, leg: Leg) -> None:
    leg.control_used = True
    leg.replied("probe")


@pytest.fixture
def legs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Leg]]:
    """Replace pytest's run of the test.

    ``legs(crash, works)`` sets the behaviour of each leg and returns those that
    ran.
    """

    def script(*behaviour: Behaviour) -> list[Leg]:
        ran: list[Leg] = []
        behaviours = iter(behaviour)

        def run(item: Any, nextitem: object) -> list[pytest.TestReport]:
            leg = item.stash[LEG]
            ran.append(leg)
            next(behaviours)(item, leg)
            return [
                report(
                    "failed" if leg.error else "passed",
                    text=str(leg.error) if leg.error else None,
                )
            ]

        monkeypatch.setattr(state, "run_once", run)
        return ran

    return script


def verdict_of(item: Any) -> Verdict:
    (deciding,) = (event for event in item.events if not isinstance(event, str))
    verdict: Verdict = getattr(deciding, ATTRIBUTE).verdict
    return verdict


def test_a_failure_runs_the_control_leg_and_then_reports_once(
    make_item: MakeItem, legs: Callable[..., list[Leg]]
) -> None:
    item, ran = make_item(CRASH), legs(crash, works)
    assert protocol.run(item, None) is True
    subject, control = ran
    assert (subject.name, dict(subject.changes), dict(subject.probe)) == (SUBJECT, {}, {})
    assert (control.name, dict(control.changes), dict(control.probe)) == (
        CONTROL,
        {"tokenizer_pool_size": 0},
        {"n": 1},
    )
    assert (
        control.protocol_started == subject.protocol_started
    )  # one test, one clock of pytest-timeout
    assert [event if isinstance(event, str) else "report" for event in item.events] == [
        "start",
        "again",
        "report",
        "finish",
    ]
    assert verdict_of(item) is Verdict.REPRODUCED


def test_a_pass_runs_no_control_leg(make_item: MakeItem, legs: Callable[..., list[Leg]]) -> None:
    item, ran = make_item(CRASH, version="0.8.5"), legs(works)
    protocol.run(item, None)
    assert [leg.name for leg in ran] == [SUBJECT]
    assert verdict_of(item) is Verdict.FIXED


def test_a_control_leg_that_leaves_nothing_out_proves_nothing(
    make_item: MakeItem, legs: Callable[..., list[Leg]]
) -> None:
    def same(item: Any, leg: Leg) -> None:
        leg.replied("probe")

    item, ran = make_item(CRASH), legs(crash, same)
    protocol.run(item, None)
    assert isinstance(ran[1].error, UsageError) and "nothing left out 'the pool'" in str(
        ran[1].error
    )
    assert verdict_of(item) is Verdict.INCONCLUSIVE


def test_only_the_subjects_leg_may_end_a_hang_early(
    make_item: MakeItem, legs: Callable[..., list[Leg]]
) -> None:
    """Neither leg ends early when an engine dies: a case about a hang may kill the engine itself to
    see what happens to its requests."""
    item = make_item(HANG)
    policies = []

    def look(behave: Behaviour) -> Behaviour:
        def run(item: Any, leg: Leg) -> None:
            assert leg.early_exit is not None
            policies.append(leg.early_exit)
            behave(item, leg)

        return run

    legs(look(crash), look(works))
    protocol.run(item, None)
    assert [policy.hang and policy.hang.pattern for policy in policies] == ["boom", None]
    assert [policy.deaths for policy in policies] == [False, False]


def call(error: BaseException | None) -> pytest.CallInfo[None]:
    """Return pytest's record of a call that raised ``error``, or succeeded."""

    def run() -> None:
        if error is not None:
            raise error from error.__cause__

    return pytest.CallInfo.from_call(run, "call")


def remembered(item: Any, *outcomes: tuple[str, BaseException | None]) -> Leg:
    item.stash[LEG] = Leg()
    for outcome, error in outcomes:
        protocol.remember(item, call(error), report(outcome))
    return item.stash[LEG]  # type: ignore[no-any-return]


def test_the_first_error_of_a_leg_counts(make_item: MakeItem) -> None:
    first, later = ValueError("first"), KeyError("in the teardown")
    assert (
        remembered(make_item(), ("passed", None), ("failed", first), ("failed", later)).error
        is first
    )


def test_the_line_of_an_error_is_that_of_the_test(make_item: MakeItem) -> None:
    item = make_item()
    item.path = Path(__file__)
    line = remembered(item, ("failed", ValueError("first"))).line
    assert re.fullmatch(r"test_protocol\.py:\d+", line)
    assert "raise error" in Path(__file__).read_text().splitlines()[int(line.partition(":")[2]) - 1]
    item.path = Path("elsewhere.py")
    assert remembered(item, ("failed", ValueError("first"))).line == ""


def test_a_skip_keeps_what_it_claims(make_item: MakeItem) -> None:
    claim = Unsupported("no", since="0.9")
    skip = pytest.skip.Exception("no")
    skip.__cause__ = claim
    leg = remembered(make_item(), ("skipped", skip))
    assert (leg.skipped, leg.error) == ("no", claim)
    bare = remembered(make_item(), ("skipped", pytest.skip.Exception("why")))
    assert (bare.skipped, bare.error) == ("why", None)


def test_reports_hold_no_secret_and_cannot_steer_the_terminal(make_item: MakeItem) -> None:
    item = make_item()
    masked_report = report("failed", text="password=hunter2222\n\tin\x1b[31m red")
    masked_report.sections.append(("stdout", "api_key=hunter3333"))
    protocol.remember(item, call(None), masked_report)
    assert "hunter" not in masked_report.longreprtext + masked_report.sections[0][1]
    assert "\x1b" not in masked_report.longreprtext and "\n\tin" in masked_report.longreprtext
    skipped = report("skipped", text=("test_demo.py", 3, "Skipped: password=hunter2222"))
    protocol.remember(item, call(None), skipped)
    assert skipped.longrepr[:2] == ("test_demo.py", 3) and "hunter" not in skipped.longrepr[2]


def test_a_failed_report_lists_the_requests_to_vllm(make_item: MakeItem) -> None:
    failed, passed = report("failed", text="no"), report("passed")
    for made in (failed, passed):
        protocol.remember(make_item(), call(None), made)
    assert failed.sections == [("Requests to vLLM", "POST /v1/completions: status 500")]
    assert passed.sections == []


def test_what_the_device_cannot_show_is_skipped_before_anything_starts(make_item: MakeItem) -> None:
    protocol.check_applicable(make_item(CaseFile(devices=("sim",))))
    with pytest.raises(pytest.skip.Exception, match="demo-2 can be shown on cpu, gpu") as caught:
        protocol.check_applicable(make_item(CaseFile("demo-2", devices=("cpu", "gpu"))))
    assert (
        isinstance(caught.value.__cause__, Unsupported)
        and caught.value.__cause__.claim == "not on device sim"
    )


@pytest.mark.parametrize(
    ("case", "settings", "hang", "deaths"),
    [
        (LOGGED_HANG, {}, True, False),
        (LOGGED_HANG, {"full_deadlines": True}, False, False),
        # a stack shows a position, not a failure; an empty log matches nothing
        (dataclasses.replace(LOGGED_HANG, symptom='where = "stacks"'), {}, False, False),
        (dataclasses.replace(LOGGED_HANG, symptom='where = "answer"'), {}, False, False),
        (dataclasses.replace(LOGGED_HANG, symptom='all = ["later"]'), {}, False, False),
        (CaseFile(symptom='where = "log"'), {}, False, True),
        (CaseFile(symptom='where = "log"'), {"full_deadlines": True}, False, False),
    ],
)
def test_the_policy_of_a_case(
    make_item: MakeItem, case: CaseFile, settings: dict[str, Any], hang: bool, deaths: bool
) -> None:
    item = make_item(case, **settings)
    policy = protocol.early_exit_policy(item, item.marked)
    assert (policy.hang is not None, policy.deaths) == (hang, deaths)
    assert policy.hang is None or (policy.hang.pattern, tuple(policy.hang.phases)) == (
        "waiting",
        ("probe",),
    )
    assert protocol.early_exit_policy(item, None) == (
        NO_EARLY_EXIT if settings else EarlyExitPolicy()
    )


def test_an_engine_that_cannot_start_is_reported_in_full_once(make_item: MakeItem) -> None:
    first, second = make_item(), make_item()
    second.config, second.nodeid = first.config, "test_demo.py::test_other"
    error = ChildDied("it ended", phase="start", detail="a long dossier")
    texts = []
    for item in (first, second):
        failed = report("failed", when="setup", text="a long text")
        call: Any = SimpleNamespace(excinfo=SimpleNamespace(value=error, traceback=[]))
        protocol.remember(item, call, failed)
        texts.append(failed.longrepr)
    assert texts == [
        "a long text",
        "[start] it ended (in full at test_demo.py::test_demo; not started again)",
    ]


def test_a_script_error_belongs_to_the_test_that_caused_it(make_item: MakeItem) -> None:
    def check() -> None:
        raise ScriptError("it could not be followed")

    item = make_item()
    item.config.stash[SESSION] = SimpleNamespace(check_scripts=check, answered=list)
    with pytest.raises(ScriptError) as raised, checking_scripts(item):
        raise KeyError("no answer")
    assert isinstance(raised.value.__cause__, KeyError)
    with pytest.raises(ScriptError), checking_scripts(item):
        pass
    with pytest.raises(Unsupported), checking_scripts(item):
        raise Unsupported("not here", lacks="it")
    failed = report("failed", text="a traceback through the plugin")
    excinfo = SimpleNamespace(value=ScriptError("it could not be followed"), traceback=[])
    protocol.remember(item, SimpleNamespace(excinfo=excinfo), failed)  # type: ignore[arg-type]
    assert failed.longrepr == "it could not be followed"
