"""Judging stored observations again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case, LogText
from pytest_vllm_regress.cases.observation import Mechanism, Observation
from pytest_vllm_regress.cases.proofs import rejudge
from pytest_vllm_regress.cases.proofs.fingerprint import code_fingerprint
from pytest_vllm_regress.cases.results import RunResult, TestResult, read_results, write_results
from pytest_vllm_regress.cases.verdict import Verdict, judge_observation
from pytest_vllm_regress.errors import Kind, Masked, Part
from tests.helpers.cases import CaseFile

CASE = CaseFile(phase="request", omits="n")
SEEN = Observation(
    Kind.WRONG_RESULT,
    "request",
    "expected 8, got 1",
    {Part.ASSERTION: Masked("expected 8, got 1")},
    (Mechanism("n=1", True),),
)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return CASE.write(tmp_path / "cases", {"test_demo.py": "def test_demo():\n    pass\n"})


def stored(
    case: Case, path: Path, control: str = "passed", observation: Observation | None = SEEN
) -> Path:
    decision = judge_observation(
        case, None, {"vllm": "0.8.4"}, SEEN, Observation(Kind.PASSED, "request")
    )
    result = TestResult(
        "demo", "t", decision.verdict, decision.reason, "sim", "old", {"vllm": "0.8.4"}, control=control,
        match=decision.match, observation=observation, code=code_fingerprint(case.directory),
    )  # fmt: skip
    write_results(path, RunResult((result,)))
    return path


def change(case: Case, old: str, new: str) -> None:
    text = case.path.read_text()
    assert old in text
    case.path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("one result", "another title", Verdict.REPRODUCED),
        ("expected 8", "expected 9", Verdict.INCONCLUSIVE),
        ('"<0.8.5"', '"<0.8.4"', Verdict.REGRESSED),
        ('kind = "wrong-result"', 'kind = "exception"', Verdict.INCONCLUSIVE),
        ("[control]", 'where = "log"\n[control]', Verdict.INCONCLUSIVE),
    ],
)
def test_after_a_change_of_claims(
    case: Case,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    verdict: Verdict,
) -> None:
    file = stored(case, tmp_path / "run.json")
    # [control] ends the [symptom] table, so another symptom key goes before it
    change(case, old, new)
    status = cli.main(
        [
            "--cases",
            str(tmp_path / "cases"),
            "judge",
            "demo",
            str(file),
            "--out",
            str(tmp_path / "new.json"),
        ]
    )
    assert status == (0 if verdict is Verdict.REPRODUCED else 1)
    (now,) = read_results(tmp_path / "new.json").results
    assert now.verdict is verdict
    output = capsys.readouterr().out
    assert "does not fit" not in output
    assert ("REPRODUCED -> " in output) == (verdict is not Verdict.REPRODUCED)


def test_stored_results_are_not_overwritten(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may hold results of other cases, which would be lost."""
    file = stored(case, tmp_path / "run.json")
    before = file.read_bytes()
    assert (
        cli.main(
            ["--cases", str(tmp_path / "cases"), "judge", "demo", str(file), "--out", str(file)]
        )
        == 2
    )
    assert "already an input of this command" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_observations_of_other_code_are_out_of_date(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = stored(case, tmp_path / "run.json")
    (case.directory / "test_demo.py").write_text("def test_demo():\n    assert True\n")
    assert cli.main(["--cases", str(tmp_path / "cases"), "judge", "demo", str(file)]) == 1
    output = capsys.readouterr().out
    assert "a test or probe of the case has changed since" in output
    assert "observations judged again: 1; verdicts changed: 0; out of date: 1" in output


def test_a_control_leg_that_was_not_run_proves_nothing(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = stored(case, tmp_path / "run.json", control="")
    assert cli.main(["--cases", str(tmp_path / "cases"), "judge", "demo", str(file)]) == 1
    assert "the control leg (without n) was not run" in capsys.readouterr().out


def test_without_stored_observations(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = stored(case, tmp_path / "run.json", observation=None)
    assert cli.main(["--cases", str(tmp_path / "cases"), "judge", "demo", str(file)]) == 1
    assert "no observation was stored" in capsys.readouterr().out
    write_results(file, RunResult(()))
    assert cli.main(["--cases", str(tmp_path / "cases"), "judge", "demo", str(file)]) == 2
    assert f"vllm-regress --cases {tmp_path}/cases run demo" in capsys.readouterr().err


def test_saved_observations_can_be_judged_anywhere(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    log = "\n".join(
        ["a line"] * 2000
        + [f'File "{tmp_path}/cache/environments/x/vllm.py"', "expected 8"]
        + ["b"] * 5000
    )
    observation = replace(
        SEEN, parts={Part.ASSERTION: Masked("expected 8, got 1"), Part.LOG: Masked(log)}
    )
    (result,) = read_results(stored(case, tmp_path / "run.json", observation=observation)).results
    other = replace(result, test="another", dossier="long" * 100)
    path = rejudge.save_observations(case, [RunResult((result, other))])
    assert path == case.directory / "observations.json" and path.stat().st_size < 6000
    (again,) = rejudge.rejudge_case(case, rejudge.load_observations(case))
    assert (again.now.verdict, again.stale) == (Verdict.REPRODUCED, "")
    assert again.now.observation is not None
    log = again.now.observation.parts[Part.LOG]
    assert (
        'File "CACHE/environments/x/vllm.py"\nexpected 8' in log
        and str(tmp_path) not in path.read_text()
    )
    assert cli.main(["--cases", str(tmp_path / "cases"), "judge", "demo"]) == 0  # no run is needed
    assert "observations judged again: 1; verdicts changed: 0" in capsys.readouterr().out


def test_what_the_failure_prints_stays_in_a_saved_log(case: Case) -> None:
    case = dataclasses.replace(case, log=LogText("slot 7 is gone"))
    log = Masked("\n".join(["a line"] * 2000 + ["ERROR: slot 7 is gone"] + ["b"] * 5000))
    parts = {Part.ASSERTION: Masked("expected 8, got 1"), Part.LOG: log}
    result = TestResult(
        *("demo", "t", Verdict.REPRODUCED, "", "sim", "old", {"vllm": "0.8.4"}),
        observation=replace(SEEN, parts=parts),
    )
    rejudge.save_observations(case, [RunResult((result,))])
    (again,) = rejudge.load_observations(case)[0].results
    assert again.observation and "slot 7 is gone" in again.observation.parts[Part.LOG]


def test_all_texts_of_a_symptom_stay_in_a_saved_part(case: Case) -> None:
    symptom = dataclasses.replace(case.symptom, all=("slot 7 is gone",))
    lines = ["expected 8, got 1", *["b"] * 5000, "slot 7 is gone", *["c"] * 5000]
    parts = {Part.ASSERTION: Masked("\n".join(lines))}
    result = TestResult(
        *("demo", "t", Verdict.REPRODUCED, "", "sim", "old", {"vllm": "0.8.4"}),
        observation=replace(SEEN, parts=parts),
    )
    saved = dataclasses.replace(case, symptom=symptom)
    rejudge.save_observations(saved, [RunResult((result,))])
    (again,) = rejudge.load_observations(case)[0].results
    assert again.observation and symptom.is_shown_by(again.observation)
    assert len(again.observation.parts[Part.ASSERTION]) < len(parts[Part.ASSERTION])


def test_results_of_a_slow_pattern_are_not_all_judged(case: Case, tmp_path: Path) -> None:
    """Regression: the search in each of any number of results was allowed seconds."""
    (result,) = read_results(stored(case, tmp_path / "run.json")).results
    results = tuple(replace(result, test=f"t{number}") for number in range(5))
    clock = iter(range(0, 1000, 25))
    judged = rejudge.rejudge_case(case, [RunResult(results)], clock=lambda: float(next(clock)))
    assert [entry.stale.partition(":")[0] for entry in judged] == [
        "",
        "",
        "not judged again",
        "not judged again",
        "not judged again",
    ]
    assert judged[-1].now is judged[-1].before


def test_a_failure_that_another_case_explains_stays_not_applicable(case: Case) -> None:
    seen = Observation(
        Kind.EXCEPTION, "start", "no pinned memory", {Part.LOG: Masked("no pinned memory")}
    )
    result = TestResult(
        "demo", "t", Verdict.NOT_APPLICABLE, "nothing starts here because of vllm-1", "sim", "old", {"vllm": "0.8.4"},
        observation=seen, code=code_fingerprint(case.directory),
    )  # fmt: skip
    (again,) = rejudge.rejudge_case(case, [RunResult((result,))])
    assert not again.changed
    assert again.now.reason == result.reason
