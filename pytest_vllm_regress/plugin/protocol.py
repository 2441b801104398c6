"""Running a test of ours: one leg, a second one as control where the case asks for it, and the verdict put into the reports."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from ..cases.control import Control
from ..errors import Unsupported, UsageError
from ..util.masking import mask
from . import judge, minimize, private
from .evidence import CONTROL, SUBJECT, Evidence, harmless
from .fixtures import skipping
from .impostors import report_of, trials_of
from .markers import MarkedCase, check_requirements, marked_case
from .session import environment_of, session_of, set_current_item
from .stash import EVIDENCE, evidence_of, needs_legs


def run(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """The hook pytest_runtest_protocol for tests that may be run more than once."""
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    marked, session = _marked(item), session_of(item.config)
    early = judge.early(item, marked)
    session.early = dataclasses.replace(early, hang=None)
    if (trials := trials_of(item.config)) is not None:
        # Nothing stays set up: the tests between this one and the next that is tried are not run.
        faults = trials.run(item, marked, lambda evidence: _again(item, None, evidence)) if marked else []
        hook.pytest_runtest_logreport(report=report_of(item, faults))
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
    session.early = early
    subject = _leg(item, nextitem, Evidence(SUBJECT))
    session.early = dataclasses.replace(early, hang=None)
    observed = judge.observe(subject)
    control: Evidence | None = None
    if marked is not None and judge.needs_control(item, marked, observed):
        control = _control(item, nextitem, subject, marked.case.control)
    subject.minimized = minimize.minimize(item, subject, observed, lambda evidence: _again(item, nextitem, evidence))
    reports = subject.reports
    if marked is not None:
        reports = judge.rewrite(item, judge.judge_leg(item, marked, subject, observed, control))
    session.early = judge.early(item, None)  # of tests that others run
    minimize.show(reports, subject.minimized)
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@contextlib.contextmanager
def current(item: pytest.Item) -> Iterator[None]:
    """While a test of ours is run, by us or by others: deadlines ask which it is."""
    item.stash[EVIDENCE] = Evidence()
    set_current_item(item, item.config)
    try:
        yield
    finally:
        set_current_item(None, item.config)


def begin(item: pytest.Item) -> None:
    """The hook pytest_runtest_setup: a test that others run, perhaps once more, begins with nothing seen. pytest-timeout's clock goes on."""
    if not needs_legs(item):
        item.stash[EVIDENCE] = Evidence(protocol_started=evidence_of(item).protocol_started)


def remember(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """The hook pytest_runtest_makereport: keep the first exception of the leg, and skips; hide secrets in what the report shows."""
    _conceal(report)
    evidence = item.stash.get(EVIDENCE, None)
    if evidence is None or call.excinfo is None:
        return
    error = call.excinfo.value
    if report.skipped:
        evidence.skipped = evidence.skipped or str(getattr(error, "msg", None) or error)
        if evidence.error is None and isinstance(error.__cause__, Unsupported):
            evidence.error = error.__cause__  # what it claims
    elif evidence.error is None:
        evidence.error = error


def check_applicable(item: pytest.Item) -> None:
    """The hook pytest_runtest_setup: skip what this environment or device cannot show, before anything is started."""
    with skipping():
        target = session_of(item.config).target(environment_of(item))
        check_requirements(item, target)
        marked = marked_case(item)
        if marked is not None and target.device not in marked.case.devices:
            shown = ", ".join(marked.case.devices)
            raise Unsupported(f"{marked.case.id} can be shown on {shown}", device=target.device)


def _marked(item: pytest.Item) -> MarkedCase | None:
    """The test's case; None where marker or case file are faulty: the set-up has failed already and says so."""
    try:
        return marked_case(item)
    except (pytest.UsageError, UsageError):
        return None


def _leg(item: pytest.Item, nextitem: pytest.Item | None, evidence: Evidence) -> Evidence:
    item.stash[EVIDENCE] = evidence
    try:
        evidence.reports = private.run_once(item, nextitem)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    return evidence


def _again(item: pytest.Item, nextitem: pytest.Item | None, evidence: Evidence) -> Evidence:
    private.renew(item)
    return _leg(item, nextitem, evidence)


def _control(item: pytest.Item, nextitem: pytest.Item | None, subject: Evidence, declared: Control) -> Evidence:
    asked = Evidence(CONTROL, changes=declared.changes, probe=declared.probe, protocol_started=subject.protocol_started)
    evidence = _again(item, nextitem, asked)
    if not evidence.control_used:
        evidence.error = UsageError(
            f"the control leg did the same as the subject: nothing left out {declared.omits!r}. Use the fixture vllm_leg to leave it out, "
            "or name EngineSpec fields or probe arguments of this test in [control]"
        )
    return evidence


def _conceal(report: pytest.TestReport) -> None:
    """Tracebacks show arguments, and captured output anything: what reaches terminal, JUnit or another machine is masked."""
    report.sections = [(name, mask(text)) for name, text in report.sections]
    if isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        report.longrepr = (path, line, harmless(reason))
    elif report.longrepr is not None and (text := harmless(report.longreprtext)) != report.longreprtext:
        report.longrepr = text
