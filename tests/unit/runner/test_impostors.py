"""Which case meets the impostors where, and what a run that leaves no record is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_vllm_regress.cases import impostors
from pytest_vllm_regress.cases.impostors import Impostor, Trial
from pytest_vllm_regress.cases.model import Case, find_cases
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import BuildError
from pytest_vllm_regress.runner.impostors import try_impostors
from pytest_vllm_regress.runner.runner import Options
from tests.helpers import ROOT

CASES = tuple(case for case in find_cases(ROOT / "cases") if case.id in ("vllm-17173", "lmfe-124"))


class FakePytest:
    """Writes one trial for each run, but for the environment that it keeps silent about."""

    def __init__(self, silent: str = "") -> None:
        self.silent = silent
        self.seen: list[tuple[str, list[str]]] = []

    def __call__(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        options = dict(part.split("=", 1) for part in command if part.startswith("--vllm-"))
        name = options["--vllm-env"]
        self.seen.append((name, [case.id for case in CASES if str(case.directory.resolve()) in command]))
        if name != self.silent:
            found = Trial("demo", name, "t", Impostor.ENGINE_KILLED, Verdict.INCONCLUSIVE, "")
            impostors.write(Path(options["--vllm-impostors"]), [found])
        return 0


def firsts(cases: Sequence[Case]) -> set[str]:
    return {side[0] for case in cases for side in (case.evidence.affected, case.evidence.fixed) if side}


def test_the_first_environment_of_each_side() -> None:
    start = FakePytest()
    trials = try_impostors(CASES, lambda name: None, lambda line: None, start=start)
    assert {name for name, _ in start.seen} == firsts(CASES) == {trial.environment for trial in trials}
    assert all(ids for _, ids in start.seen)


def test_what_left_no_record_or_was_not_built_has_no_trials() -> None:
    silent, unbuilt = sorted(firsts(CASES))[:2]

    def build(name: str) -> None:
        if name == unbuilt:
            raise BuildError("no such wheel")

    said: list[str] = []
    trials = try_impostors(CASES, build, said.append, start=FakePytest(silent))
    assert {trial.environment for trial in trials} == firsts(CASES) - {silent, unbuilt}
    assert f"{unbuilt}: no such wheel" in said


def test_no_cases_need_no_run() -> None:
    assert try_impostors((), lambda name: None, lambda line: None, start=FakePytest()) == ()


def test_a_repeat_line_leads_to_the_same_cases() -> None:
    assert Options().repeat("a", "vllm-0.8.5") == "vllm-regress run a --env vllm-0.8.5"
    elsewhere = Options(device="sim", cases_dir=Path("my cases"))
    assert elsewhere.repeat("a", "x") == "vllm-regress --cases 'my cases' run a --env x --device sim"
