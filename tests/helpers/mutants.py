"""Mutants of cases, worsened in four ways, and what detects them.

No engine runs: the stored observations are judged.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cases.model import Case, Range
from pytest_vllm_regress.cases.observation import Observation
from pytest_vllm_regress.cases.proofs import lint, proof, rejudge
from pytest_vllm_regress.cases.proofs.impostors import (
    UNRELATED_MESSAGE,
    ImpostorRun,
    impostor_of_kind,
)
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict, judge_observation
from pytest_vllm_regress.errors import CaseFileError, Kind, Masked

_AT_WORK = ("vllm_at_work", "at_work")


def mutant_detections(
    case: Case, cases: tuple[Case, ...], folder: Path
) -> dict[str, tuple[str, ...]]:
    """Return what detected each mutant, by its description."""
    return {
        "pattern made `.*`": tuple(pattern_made_wide(case, cases)),
        "control taken away": tuple(control_taken_away(case, folder / "control")),
        "range turned round": tuple(range_turned_round(case)),
        "assertions weakened": tuple(assertion_weakened(case, folder / "assertion")),
    }


@functools.lru_cache(maxsize=1)
def stored_runs(path: Path) -> tuple[RunResult, ...]:
    """Return the runs stored with the proof of the case whose case.toml is ``path``.

    Cached, because each case has several mutants.
    """
    return rejudge.load_observations(load_case(path))


def stored_results(case: Case) -> tuple[TestResult, ...]:
    """Return the results stored with the case's proof."""
    return tuple(result for run in stored_runs(case.path) for result in run.results)


def pattern_made_wide(case: Case, cases: tuple[Case, ...], pattern: str = ".*") -> Iterator[str]:
    """A pattern that matches anything: detected by the static check, and by an impostor with the
    case's kind and unrelated text."""
    mutant = dataclasses.replace(case, symptom=dataclasses.replace(case.symptom, pattern=pattern))
    if (
        lint.pattern_problem(mutant)
        and lint.lint_case(mutant, cases)
        and not lint.pattern_problem(case)
    ):
        yield "`validate` rejects the pattern"
    if not any(_forged(case)) and all(_forged(mutant)):
        yield "an impostor with its kind and phase produces the verdict"


def control_taken_away(case: Case, folder: Path) -> Iterator[str]:
    """Without the [control] table and the vllm_at_work calls, observations have neither a control
    leg nor a mechanism."""
    copied = _copy(case, folder)
    text = copied.read_text()
    copied.write_text(re.sub(r"(?ms)^\[control\]$.*?(?=^\[|\Z)", "", text))
    for test in copied.parent.glob("test_*.py"):
        test.write_text(ast.unparse(_WithoutMechanism().visit(ast.parse(test.read_text()))))
    try:
        mutant = load_case(copied)
    except CaseFileError:
        yield "the case file is rejected"
        return
    results = [
        replace(result, control="", observation=_without_mechanism(result))
        for result in stored_results(case)
    ]
    _, wrong = proof.make_proof(mutant, [results], lambda name: "0" * 16)
    if any("nothing shows that its mechanism was at work" in line for line in wrong):
        yield "`validate` rejects the proof"


def range_turned_round(case: Case) -> Iterator[str]:
    """The complement of the range: detected by judging again, and by the versions of the proof."""
    mutant = dataclasses.replace(case, affected=tuple(map(_inverted, case.affected)))
    again = rejudge.rejudge_case(mutant, stored_runs(case.path))
    wrong = sorted(
        {result.now.verdict.value for result in again if result.changed and not result.now.expected}
    )
    if wrong:
        yield f"`judge` says {' and '.join(wrong)}"
    if lint.range_contradictions(mutant, proof.read_proof(case.directory / proof.FILE)):
        yield "`validate --check` fails"


def assertion_weakened(case: Case, folder: Path) -> Iterator[str]:
    """Assertions that always hold: detected because the code changed, and because a wrong result no
    longer shows."""
    copied = _copy(case, folder)
    weakened = _Weakened()
    for test in copied.parent.glob("test_*.py"):
        test.write_text(ast.unparse(weakened.visit(ast.parse(test.read_text()))))
    assert weakened.times, f"{case.id}: found nothing to weaken"
    mutant = load_case(copied)
    if any("has changed since" in line for line in proof.check_proof(mutant)):
        yield "`validate --check` rejects the old proof"
    if Kind.WRONG_RESULT not in case.symptom.kinds:
        return
    passed = [_passed(mutant, result) for result in stored_results(case)]
    _, wrong = proof.make_proof(mutant, [passed], lambda name: "0" * 16)
    if any(f"was {Verdict.UNEXPECTEDLY_FIXED.value}" in line for line in wrong):
        yield "`validate` does not prove it again"


def _forged(case: Case) -> Iterator[str]:
    """Yield the problems of impostors with the case's kind and phase, in the first environment of
    each side."""
    kind, phase = case.symptom.kinds[0], case.symptom.phases[0]
    parts = dict.fromkeys(case.symptom.parts_for(kind), Masked(f"ValueError: {UNRELATED_MESSAGE}"))
    observed = Observation(kind, phase, UNRELATED_MESSAGE, parts)
    for names in (case.evidence.affected[:1], case.evidence.fixed[:1]):
        for result in [result for result in stored_results(case) if result.environment in names][
            :1
        ]:
            decision = judge_observation(
                case, None, result.versions, observed, Observation(Kind.PASSED, phase)
            )
            yield ImpostorRun(
                case.id, names[0], "t", impostor_of_kind(case), decision.verdict, decision.reason
            ).flaw


def _inverted(affected: Range) -> Range:
    """Return the versions above the (first) range, or those below if it has no upper bound."""
    clauses = affected.specifier.partition("||")[0].replace(" ", "").split(",")
    upper = next((clause for clause in clauses if clause.startswith("<")), None)
    if upper is None:
        lower = next(clause for clause in clauses if clause.startswith(">"))
        return Range(
            affected.package, lower.replace(">=", "<") if "=" in lower else lower.replace(">", "<=")
        )
    return Range(
        affected.package, upper.replace("<=", ">") if "=" in upper else upper.replace("<", ">=")
    )


def _copy(case: Case, folder: Path) -> Path:
    target = folder / case.directory.name
    shutil.copytree(case.directory, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target / case.path.name


def _without_mechanism(result: TestResult) -> Observation | None:
    return result.observation and replace(result.observation, at_work=())


def _passed(case: Case, result: TestResult) -> TestResult:
    """Return the result as if no assertion of the test had failed."""
    observed = result.observation
    if observed is None or observed.kind is not Kind.WRONG_RESULT:
        return result
    observed = replace(observed, kind=Kind.PASSED, parts={})
    decision = judge_observation(case, result.variant, result.versions, observed)
    return replace(result, verdict=decision.verdict, reason=decision.reason, observation=observed)


class _Weakened(ast.NodeTransformer):
    """Make assertions hold and remove calls of fail() and check(). ``times``: number of changes."""

    times = 0

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        self.times += 1
        return ast.Assert(ast.Constant(True))

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in ("fail", "check"):
            self.times += 1
            return ast.Pass()
        return node


class _WithoutMechanism(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        return ast.Pass() if isinstance(called, ast.Name) and called.id in _AT_WORK else node
