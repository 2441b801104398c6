"""Cases made worse in the four ways in which a case goes wrong, and what notices each. No engine runs: what engines did is kept beside each case."""

from __future__ import annotations

import ast
import dataclasses
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from pytest_vllm_regress.cases import lint, proof, rejudge
from pytest_vllm_regress.cases.impostors import UNRELATED, Trial, in_its_own_way
from pytest_vllm_regress.cases.judgement import judge
from pytest_vllm_regress.cases.model import Case, Range, load_case
from pytest_vllm_regress.cases.observation import Observation
from pytest_vllm_regress.cases.results import TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import CaseFileError, Kind

_AT_WORK = ("vllm_at_work", "at_work")


def every_way(case: Case, cases: tuple[Case, ...], folder: Path) -> dict[str, tuple[str, ...]]:
    """By what was done to the case what noticed it."""
    return {
        "pattern made `.*`": tuple(pattern_made_wide(case, cases)),
        "control taken away": tuple(control_taken_away(case, folder / "control")),
        "range turned round": tuple(range_turned_round(case)),
        "assertions weakened": tuple(assertion_weakened(case, folder / "assertion")),
    }


def seen(case: Case) -> tuple[TestResult, ...]:
    """What the case's proof saw."""
    return tuple(result for run in rejudge.kept(case) for result in run.results)


def pattern_made_wide(case: Case, cases: tuple[Case, ...], pattern: str = ".*") -> Iterator[str]:
    """The static check, and an impostor that fails in the case's own way with words that are not its own."""
    mutant = dataclasses.replace(case, symptom=dataclasses.replace(case.symptom, pattern=pattern))
    if lint.meaningless(mutant) and lint.warnings(mutant, cases) and not lint.meaningless(case):
        yield "`validate` refuses the pattern"
    if not any(_forged(case)) and all(_forged(mutant)):
        yield "an impostor of its kind and phase earns the verdict"


def control_taken_away(case: Case, folder: Path) -> Iterator[str]:
    """The table and the calls go; what is seen then has neither a leg nor a mechanism."""
    copied = _copy(case, folder)
    text = copied.read_text()
    copied.write_text(re.sub(r"(?ms)^\[control\]$.*?(?=^\[|\Z)", "", text))
    for test in copied.parent.glob("test_*.py"):
        test.write_text(ast.unparse(_WithoutMechanism().visit(ast.parse(test.read_text()))))
    try:
        mutant = load_case(copied)
    except CaseFileError:
        yield "the case file is refused"
        return
    bare = [dataclasses.replace(each, control="", observation=_without_mechanism(each)) for each in seen(case)]
    _, wrong = proof.prove(mutant, [bare], lambda name: "0" * 16)
    if any("nothing shows that its mechanism was at work" in line for line in wrong):
        yield "`validate` refuses the proof"


def range_turned_round(case: Case) -> Iterator[str]:
    """What was seen, judged by the other versions; and the versions of the proof."""
    mutant = dataclasses.replace(case, affected=tuple(map(_inverted, case.affected)))
    again = rejudge.judge_again(mutant, rejudge.kept(case))
    wrong = sorted({each.now.verdict.value for each in again if each.changed and not each.now.expected})
    if wrong:
        yield f"`judge` says {' and '.join(wrong)}"
    if lint.contradictions(mutant, proof.read(case.directory / proof.FILE)):
        yield "`validate --check` refuses"


def assertion_weakened(case: Case, folder: Path) -> Iterator[str]:
    """Every assertion holds, whatever is seen: the proof is of other code; and of a wrong result nothing is left to see."""
    copied = _copy(case, folder)
    weakened = _Weakened()
    for test in copied.parent.glob("test_*.py"):
        test.write_text(ast.unparse(weakened.visit(ast.parse(test.read_text()))))
    assert weakened.times, f"{case.id}: nothing to weaken was found"
    mutant = load_case(copied)
    if any("has changed since" in line for line in proof.check(mutant)):
        yield "`validate --check` refuses the old proof"
    if Kind.WRONG_RESULT not in case.symptom.kinds:
        return
    passed = [_passed(mutant, each) for each in seen(case)]
    _, wrong = proof.prove(mutant, [passed], lambda name: "0" * 16)
    if any(f"was {Verdict.UNEXPECTEDLY_FIXED.value}" in line for line in wrong):
        yield "`validate` makes no new one"


def _forged(case: Case) -> Iterator[str]:
    """What impostors that fail with the kind and in the phase of the case are blamed for, in the first environment of each side."""
    kind, phase = case.symptom.kinds[0], case.symptom.phases[0]
    parts = dict.fromkeys(case.symptom.parts_for(kind), f"ValueError: {UNRELATED}")
    observed = Observation(kind, phase, UNRELATED, parts)
    for names in (case.evidence.affected[:1], case.evidence.fixed[:1]):
        for result in [each for each in seen(case) if each.environment in names][:1]:
            decision = judge(case, None, result.versions, observed, Observation(Kind.PASSED, phase))
            yield Trial(case.id, names[0], "t", in_its_own_way(case), decision.verdict, decision.reason).fault


def _inverted(affected: Range) -> Range:
    """The versions above the range; of one without an upper bound those below."""
    clauses = affected.specifier.replace(" ", "").split(",")
    upper = next((each for each in clauses if each.startswith("<")), None)
    if upper is None:
        lower = next(each for each in clauses if each.startswith(">"))
        return Range(affected.package, lower.replace(">=", "<") if "=" in lower else lower.replace(">", "<="))
    return Range(affected.package, upper.replace("<=", ">") if "=" in upper else upper.replace("<", ">="))


def _copy(case: Case, folder: Path) -> Path:
    target = folder / case.directory.name
    shutil.copytree(case.directory, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target / case.path.name


def _without_mechanism(result: TestResult) -> Observation | None:
    return result.observation and dataclasses.replace(result.observation, at_work=())


def _passed(case: Case, result: TestResult) -> TestResult:
    """The same test, had none of its assertions failed."""
    observed = result.observation
    if observed is None or observed.kind is not Kind.WRONG_RESULT:
        return result
    observed = dataclasses.replace(observed, kind=Kind.PASSED, parts={})
    decision = judge(case, result.variant, result.versions, observed)
    return dataclasses.replace(result, verdict=decision.verdict, reason=decision.reason, observation=observed)


class _Weakened(ast.NodeTransformer):
    """Assertions hold, failures are not told, and nobody asks whether the engine lives on. ``times``: how often that changed something."""

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
