"""From what a leg saw to a verdict, and from the verdict to pytest's reports."""

from __future__ import annotations

import dataclasses
import time

import pytest
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from ..cases.model import Case, load_case_for
from ..cases.results import TestResult
from ..cases.verdict import Decision, Observation, Verdict, decide
from ..engines.target import Target
from ..errors import BuildError, ChildError, Unsupported
from ..util.masking import mask
from .evidence import Evidence
from .reporter import ATTRIBUTE
from .session import session_of
from .stash import SETTINGS
from .xdist import test_id

MAX_TEXT = 60000
MAX_SHOWN = 4000
_NEEDS_CONTROL = ("hang", "crash")


def needs_control(item: pytest.Item, subject: Evidence) -> bool:
    """A hang or crash proves something only where the harness itself is proven to work, by a control leg."""
    case, _ = case_of(item)
    return (
        observe(subject).kind in _NEEDS_CONTROL
        and bool(case.control or case.symptom.kind in _NEEDS_CONTROL)
        and _target(item) is not None
    )


def judge(item: pytest.Item, subject: Evidence, control: Evidence | None) -> list[pytest.TestReport]:
    """Decide on the test's verdict and return its reports, the deciding one rewritten."""
    observed = observe(subject)
    target = _target(item)
    if target is None:  # the environment itself failed
        decision = Decision(Verdict.INCONCLUSIVE, f"the environment could not be used: {_first_line(observed.text)}")
        return _rewrite(item, subject, None, decision, observed, control)
    case, variant = case_of(item)
    affectedness = case.is_affected(target.versions, variant)
    decision = decide(affectedness.affected, case.symptom, observed, observe(control) if control else None)
    decision = dataclasses.replace(decision, reason=f"{decision.reason} ({affectedness.reason})")
    return _rewrite(item, subject, target, decision, observed, control)


def observe(evidence: Evidence) -> Observation:
    """What a leg saw, classed. A pass counts only with a reply of the target."""
    error = evidence.error
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, Unsupported):
        return Observation("not-applicable", evidence.phase, str(error))
    if isinstance(error, ChildError):
        return Observation(error.kind, error.phase, str(error)[:MAX_TEXT])
    if isinstance(error, (AssertionError, pytest.fail.Exception)):
        return Observation("wrong-result", evidence.phase, str(error)[:MAX_TEXT])
    if error is not None:
        return Observation("exception", "test", f"{type(error).__name__}: {error}"[:MAX_TEXT])
    if evidence.skipped is not None:
        return Observation("not-applicable", evidence.phase, evidence.skipped)
    if evidence.replies == 0:
        return Observation(
            "exception", "test", "the test passed without one reply from the target: that proves nothing"
        )
    return Observation("passed", evidence.phase, f"{evidence.replies} replies")


def case_of(item: pytest.Item) -> tuple[Case, str | None]:
    """The case a test belongs to (case.toml beside its file) and the variant it shows."""
    marker = item.get_closest_marker("vllm_case")
    assert marker is not None
    variant = marker.kwargs.get("variant")
    unknown = sorted(set(marker.kwargs) - {"variant", "id"})
    case = load_case_for(item.path)
    named = marker.args[0] if marker.args else marker.kwargs.get("id", case.id)
    if unknown or len(marker.args) > 1:
        raise pytest.UsageError(
            f"{item.nodeid}: vllm_case takes an id and variant=, not {', '.join(unknown) or marker.args!r}"
        )
    if named != case.id:
        raise pytest.UsageError(
            f"{item.nodeid}: vllm_case({named!r}), but {item.path.with_name('case.toml')} has id {case.id!r}"
        )
    if variant is not None and variant not in case.variants:
        raise pytest.UsageError(
            f"{item.nodeid}: {case.id} has no variant {variant!r}; it has {', '.join(sorted(case.variants)) or 'none'}"
        )
    return case, variant


def check_requirements(item: pytest.Item, target: Target) -> None:
    """Marker ``vllm_requires``: skip with the reason where the target lacks something."""
    for marker in item.iter_markers("vllm_requires"):
        if marker.args:
            raise pytest.UsageError(f"{item.nodeid}: vllm_requires takes keywords, e.g. vllm_requires(vllm='>=0.8')")
        for name, wanted in marker.kwargs.items():
            package = name.replace("_", "-").lower()
            try:
                allowed = SpecifierSet("" if wanted == "*" else wanted)
            except InvalidSpecifier:
                raise pytest.UsageError(
                    f"{item.nodeid}: vllm_requires({name}={wanted!r}) is not a PEP 440 specifier"
                ) from None
            version = target.versions.get(package)
            if version is None or not allowed.contains(version.partition("+")[0], prereleases=True):
                pytest.skip(f"needs {package} {wanted}; {target.name} has {version or 'none'}")


def _target(item: pytest.Item) -> Target | None:
    session = session_of(item.config)
    params = getattr(getattr(item, "callspec", None), "params", {})
    try:
        return session.target(str(params.get("vllm_env") or session.environment_names()[0]))
    except (BuildError, ChildError):
        return None


def _rewrite(
    item: pytest.Item,
    subject: Evidence,
    target: Target | None,
    decision: Decision,
    observed: Observation,
    control: Evidence | None,
) -> list[pytest.TestReport]:
    reports = subject.reports
    deciding = next((r for r in reports if r.failed or r.skipped), None) or next(
        (r for r in reports if r.when == "call"), reports[0]
    )
    message = f"{decision.verdict.name}: {decision.reason}"
    case, variant = case_of(item)
    if decision.verdict is not Verdict.FIXED and case.upstream:
        message += f"; upstream: {case.upstream[0]}; first fixed version: {case.first_fixed() or 'none known'}"
    setattr(deciding, ATTRIBUTE, _result(item, case, variant, subject, target, decision, observed, control).to_json())
    deciding.user_properties += [("vllm_case", case.id), ("vllm_verdict", decision.verdict.name)]
    if target is not None:
        deciding.user_properties += [("vllm_device", target.device), ("vllm_version", target.versions.get("vllm", "?"))]
    verdict = decision.verdict
    if verdict is Verdict.REPRODUCED and not item.config.stash[SETTINGS].fail_on_known:
        deciding.outcome = "skipped"
        deciding.wasxfail = message  # how pytest's own xfail marks a report
    elif verdict is Verdict.NOT_APPLICABLE:
        deciding.outcome = "skipped"
        deciding.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {message}")
    elif verdict is not Verdict.FIXED:
        deciding.outcome = "failed"
        before = f"\n\n{deciding.longreprtext}" if deciding.longrepr else ""
        deciding.longrepr = message + before
        if control is not None and control.error is not None:
            deciding.sections.append(("control leg", mask(str(control.error))[:MAX_SHOWN]))
    return reports


def _result(
    item: pytest.Item,
    case: Case,
    variant: str | None,
    subject: Evidence,
    target: Target | None,
    decision: Decision,
    observed: Observation,
    control: Evidence | None,
) -> TestResult:
    session = session_of(item.config)
    name = target.name if target else session.environment_names()[0]
    command = f"pytest {test_id(item)!r} --vllm-env {name!r}" + (f" --vllm-device {target.device}" if target else "")
    shown = "" if observed.kind == "passed" else mask(observed.text)
    minimized = f"\n\n---- minimized ----\n{subject.minimized}" if subject.minimized else ""
    return TestResult(
        case_id=case.id,
        test=test_id(item),
        variant=variant,
        verdict=decision.verdict,
        reason=mask(decision.reason),
        device=target.device if target else "unknown",
        environment=name,
        versions=target.versions if target else {},
        started_at=subject.started_at,
        duration_s=round(time.time() - subject.started_at, 3),
        symptom=_first_line(shown),
        dossier=shown + minimized,
        command=command,
        control="" if control is None else "passed" if observe(control).kind == "passed" else "failed",
    )


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")[:500]
