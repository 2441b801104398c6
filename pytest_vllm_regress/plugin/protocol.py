"""Run a test with the plugin's own protocol: one leg, a control leg if the case declares one, and
the verdict in the reports.

The control leg is the same test again, without the trigger (the changes in ``[control]`` of
case.toml, or what the test leaves out by
``vllm_leg``). It runs when the case declares one, the subject leg failed in a way that a case may
document (``errors.Kind``; not a skip, a wrong request or a limit), no mechanism of ``vllm_at_work``
was absent, and the environment can be used (``verdicts.needs_control``). It has no control leg of
its own and is not retried. If it does not pass, or if it left nothing out, the verdict is
INCONCLUSIVE (``cases/verdict.decide``).

The protocol runs inside ``pytest_runtest_protocol``. Plugins that wrap that hook (timers, log
capture, coverage contexts) see one test; plugins that wrap the three phases or fixtures see both
legs. Plugins that run a test themselves, such as pytest-rerunfailures, never see the test of a
case: to repeat a reproduced failure until it passes would hide the verdict.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cases.model import Control
from ..engines.processes.early_exit import DocumentedHang, EarlyExitPolicy
from ..errors import (
    BuildError,
    ChildError,
    Kind,
    Part,
    ScriptError,
    Unsupported,
    UsageError,
)
from ..util.masking import mask
from ..util.paths import PACKAGE
from ..util.text import printable_output
from . import minimize, reads, state, verdicts
from .fixtures import skipping
from .impostor_runs import impostor_runs_of, report_of
from .leg import CONTROL, SUBJECT, Leg, sanitize
from .markers import MarkedCase, check_requirements, marked_case
from .session import environment_of, session_of, set_current_item
from .state import LEG, SESSION, leg_of, needs_legs, settings_of


def run(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Hook pytest_runtest_protocol for tests that may run more than once."""
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    marked = _marked(item)
    if (runs := impostor_runs_of(item.config)) is not None:
        # Tear everything down: the tests between this one and the next that is tried are not run.
        faults = runs.run(item, marked, lambda leg: _again(item, None, leg)) if marked else []
        hook.pytest_runtest_logreport(report=report_of(item, faults))
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
    subject = _leg(item, nextitem, Leg(SUBJECT))
    observed = verdicts.observe(subject)
    control: Leg | None = None
    if marked is not None and verdicts.needs_control(item, marked, observed):
        control = _control(item, nextitem, subject, marked.case.control)
    again = functools.partial(_again, item, nextitem)
    subject.minimized = minimize.minimize(item, subject, observed, again)
    reports = subject.reports
    if marked is not None:
        judged = verdicts.decide_leg(item, marked, subject, observed, control)
        reports = verdicts.rewrite(item, judged)
    minimize.show(reports, subject.minimized)
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@contextlib.contextmanager
def current(item: pytest.Item) -> Iterator[None]:
    """Make ``item`` the running test: deadlines and early-exit policies look it up."""
    item.stash[LEG] = Leg()
    set_current_item(item, item.config)
    try:
        yield
    finally:
        set_current_item(None, item.config)


def begin(item: pytest.Item) -> None:
    """Hook pytest_runtest_setup: a test that pytest or another plugin runs, or reruns, starts with
    fresh leg. pytest-timeout's clock runs on."""
    if not needs_legs(item):
        item.stash[LEG] = Leg(protocol_started=leg_of(item).protocol_started)


def remember(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Hook pytest_runtest_makereport: keep the exceptions of the leg, and skips; mask secrets
    in the report."""
    if call.excinfo is not None and _is_refusal(item, call.excinfo, report.when):
        report.longrepr = str(call.excinfo.value)
    elif call.excinfo is not None and report.failed:
        report.longrepr = _once(item, call.excinfo.value) or report.longrepr
    session = item.config.stash.get(SESSION, None)
    if report.failed and session is not None and (answered := session.answered()):
        report.sections.append(("Requests to vLLM", "\n".join(answered)))
    _mask_report(report)
    leg = item.stash.get(LEG, None)
    if leg is None or call.excinfo is None:
        return
    error = call.excinfo.value
    if report.skipped:
        leg.skipped = leg.skipped or str(getattr(error, "msg", None) or error)
        if leg.error is None and isinstance(error.__cause__, Unsupported):
            leg.error = error.__cause__  # names the unsupported feature
    elif leg.error is not None:
        leg.later_errors.append(error)
    else:
        leg.error = error
        for entry in call.excinfo.traceback:
            if Path(entry.path) == item.path:
                leg.line = f"{item.path.name}:{entry.lineno + 1}"


def check_applicable(item: pytest.Item) -> None:
    """Hook pytest_runtest_setup: skip what this environment or device cannot show, before anything
    is started."""
    with skipping():
        target = session_of(item.config).target(environment_of(item))
        marked = marked_case(item)
        check_requirements(item, target, marked.case.affected[0].package if marked else "vllm")
        if marked is not None and target.device not in marked.case.devices:
            devices = ", ".join(marked.case.devices)
            raise Unsupported(f"{marked.case.id} can be shown on {devices}", device=target.device)


def early_exit_policy(
    item: pytest.Item, marked: MarkedCase | None, subject: bool = True
) -> EarlyExitPolicy:
    """Return what may end a wait early in a leg of this test: the case's facts, put into the rule
    of ``processes/early_exit.py``."""
    policy = functools.partial(
        EarlyExitPolicy.for_leg, full_deadlines=settings_of(item.config).full_deadlines
    )
    if marked is None or Kind.HANG not in marked.case.symptom.kinds:
        return policy()
    symptom = marked.case.symptom
    in_log = Part.LOG in symptom.parts_for(Kind.HANG)
    # Of several texts the one that is waited for may come first.
    waits = in_log and not symptom.all
    hang = DocumentedHang(symptom.pattern, symptom.phases) if waits else None
    return policy(documents_hang=True, hang=hang, subject=subject)


def _marked(item: pytest.Item) -> MarkedCase | None:
    """Return the test's case; None if marker or case file is faulty, which the failed set-up has
    reported already."""
    try:
        return marked_case(item)
    except (pytest.UsageError, UsageError):
        return None


def _leg(item: pytest.Item, nextitem: pytest.Item | None, leg: Leg) -> Leg:
    marked = _marked(item)
    leg.early_exit = early_exit_policy(item, marked, leg.is_subject)
    leg.symptom = marked.case.symptom if marked is not None else None
    item.stash[LEG] = leg
    try:
        if marked is None:
            leg.reports = state.run_once(item, nextitem)
        else:
            with reads.watched(marked.case.directory) as leg.uncovered:
                leg.reports = state.run_once(item, nextitem)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    return leg


def _again(item: pytest.Item, nextitem: pytest.Item | None, leg: Leg) -> Leg:
    state.renew(item)
    session_of(item.config).begin_again(item.nodeid)
    return _leg(item, nextitem, leg)


def _control(
    item: pytest.Item, nextitem: pytest.Item | None, subject: Leg, declared: Control
) -> Leg:
    control = Leg(
        CONTROL,
        changes=declared.changes,
        probe=declared.probe,
        protocol_started=subject.protocol_started,
    )
    leg = _again(item, nextitem, control)
    if not leg.control_used:
        leg.error = UsageError(
            f"the control leg did the same as the subject: nothing left out {declared.omits!r}. Use the fixture vllm_leg to leave it out, "
            "or name EngineSpec fields or probe arguments of this test in [control]"
        )
    return leg


_STARTING = ("import", "start", "ready")
_FIRST: pytest.StashKey[dict[int, tuple[BaseException, str]]] = pytest.StashKey()


def _once(item: pytest.Item, error: BaseException) -> str:
    """Return one line for an error that another test has reported in full: the engine of both could
    not start, and was not started again. Empty for any other error."""
    if not isinstance(error, ChildError) or error.phase not in _STARTING:
        return ""
    first = item.config.stash.setdefault(_FIRST, {})
    _, reported = first.setdefault(id(error), (error, item.nodeid))
    head = str(error).partition("\n")[0]
    return "" if reported == item.nodeid else f"{head} (in full at {reported}; not started again)"


def _is_refusal(item: pytest.Item, error: pytest.ExceptionInfo[BaseException], when: str) -> bool:
    """Return whether a marker or an option was refused, or a script could not be followed in a
    request of a foreign client.

    The traceback then has no line of the user's code, and ours would not help.
    """
    if isinstance(error.value, ScriptError):
        if error.value.__cause__ is not None:
            return False
    elif when != "setup" or not isinstance(
        error.value, (UsageError, BuildError, pytest.UsageError)
    ):
        return False
    files = (Path(entry.path) for entry in error.traceback)
    return not any(
        file.is_relative_to(item.config.rootpath)
        and not file.is_relative_to(PACKAGE)
        and "site-packages" not in file.parts
        for file in files
    )


def _mask_report(report: pytest.TestReport) -> None:
    """Mask a report and escape control characters before it reaches the terminal, JUnit or another
    machine.

    Tracebacks show arguments, captured output anything.
    """
    report.sections = [(name, printable_output(mask(text))) for name, text in report.sections]
    if isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        report.longrepr = (path, line, sanitize(reason))
    elif (
        report.longrepr is not None
        and (text := sanitize(report.longreprtext)) != report.longreprtext
    ):
        report.longrepr = text
