"""Running a test of ours: one leg, a second one as control where the case asks for it, and the verdict put into the reports."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from ..errors import UsageError
from ..util.masking import mask
from . import judge, minimize
from .evidence import CONTROL, EVIDENCE, SUBJECT, Evidence, evidence_of
from .session import session_of, set_current_item


def run(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """The hook pytest_runtest_protocol for tests that use the target."""
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    set_current_item(item, item.config)
    try:
        subject = _leg(item, nextitem, Evidence(SUBJECT))
        control: Evidence | None = None
        judged = item.get_closest_marker("vllm_case") is not None and _well_marked(item)
        if judged and judge.needs_control(item, subject):
            control = _control(item, nextitem, subject)
        subject.minimized = minimize.minimize(item, subject, lambda evidence: _again(item, nextitem, evidence))
        reports = judge.judge(item, subject, control) if judged else subject.reports
        minimize.show(reports, subject.minimized)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
    finally:
        set_current_item(None, item.config)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def remember(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """The hook pytest_runtest_makereport: keep the first exception of the leg, and skips; hide secrets in what the report shows."""
    _conceal(report)
    evidence = item.stash.get(EVIDENCE, None)
    if evidence is None or call.excinfo is None:
        return
    error = call.excinfo.value
    if report.skipped:
        evidence.skipped = evidence.skipped or str(getattr(error, "msg", None) or error)
    elif evidence.error is None:
        evidence.error = error


def check_applicable(item: pytest.Item) -> None:
    """The hook pytest_runtest_setup: skip what this environment or device cannot show, before anything is started."""
    target = session_of(item.config).target(_environment_name(item))
    judge.check_requirements(item, target)
    if item.get_closest_marker("vllm_case") is not None:
        case, _ = judge.case_of(item)
        if target.device not in case.devices:
            pytest.skip(f"{case.id} cannot be shown on device {target.device}; it can on {', '.join(case.devices)}")


def control_changes(item: pytest.Item) -> dict[str, Any]:
    """EngineSpec fields that the control leg sets otherwise; empty for the subject."""
    evidence = evidence_of(item)
    if evidence.leg != CONTROL or item.get_closest_marker("vllm_case") is None:
        return {}
    evidence.control_used = True
    case, _ = judge.case_of(item)
    return dict(case.control)


def _well_marked(item: pytest.Item) -> bool:
    """The marker and the case file are sound; where they are not, the set-up has failed already and says so."""
    try:
        judge.case_of(item)
    except (pytest.UsageError, UsageError):
        return False
    return True


def _leg(item: pytest.Item, nextitem: pytest.Item | None, evidence: Evidence) -> Evidence:
    item.stash[EVIDENCE] = evidence
    try:
        evidence.reports = runtestprotocol(item, log=False, nextitem=nextitem)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    return evidence


def _again(item: pytest.Item, nextitem: pytest.Item | None, evidence: Evidence) -> Evidence:
    item._initrequest()  # type: ignore[attr-defined]  # a second run of the same item, as pytest-rerunfailures does it
    return _leg(item, nextitem, evidence)


def _control(item: pytest.Item, nextitem: pytest.Item | None, subject: Evidence) -> Evidence:
    evidence = _again(item, nextitem, Evidence(CONTROL, protocol_started=subject.protocol_started))
    if not evidence.control_used:
        evidence.error = UsageError(
            "the control leg did the same as the subject: use the fixture vllm_leg to leave the trigger out, or an engine with [control] fields"
        )
    return evidence


def _conceal(report: pytest.TestReport) -> None:
    """Tracebacks show arguments, and captured output anything: what reaches terminal, JUnit or another machine is masked."""
    report.sections = [(name, mask(text)) for name, text in report.sections]
    if isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        report.longrepr = (path, line, mask(reason))
    elif report.longrepr is not None and mask(report.longreprtext) != report.longreprtext:
        report.longrepr = mask(report.longreprtext)


def _environment_name(item: pytest.Item) -> str:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return str(params.get("vllm_env") or session_of(item.config).environment_names()[0])
