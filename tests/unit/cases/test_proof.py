"""Evidence files: what proves a case, and what makes the proof out of date.

Every case of the project has a proof.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases import needs
from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.observation import Mechanism, Observation
from pytest_vllm_regress.cases.proofs import proof
from pytest_vllm_regress.cases.proofs.fingerprint import claims_fingerprint, code_fingerprint
from pytest_vllm_regress.cases.proofs.impostors import Impostor, ImpostorRun
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import Kind, UsageError
from pytest_vllm_regress.runner import prove
from pytest_vllm_regress.runner.batch import RunOutcome
from pytest_vllm_regress.runner.run import RunRequest
from tests.helpers.cases import CaseFile, project_cases

TEST = """
import pytest
pytestmark = pytest.mark.vllm_case("demo")
def test_demo(vllm_probe):
    got = vllm_probe("count", n=8)
    assert got == 8, f"expected 8, got {got}"
"""


PROBE = 'def count(n):\n    import vllm\n    return 1 if vllm.__version__ == "0.8.4" else n\n'


@pytest.mark.parametrize("case", project_cases(), ids=lambda case: case.id)
def test_every_case_of_the_project_has_a_current_proof(case: Case) -> None:
    assert proof.check_proof(case) == []


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return written(tmp_path, "wrong-result")


def written(root: Path, kind: str, affected: str = "old", fixed: str = "new") -> Case:
    control = "the second stage" if kind in ("hang", "crash", "engine-death") else ""
    case = CaseFile(
        kind=kind,
        old=(affected,),
        new=(fixed,),
        omits=control,
        control="pipeline_parallel_size = 1",
    )
    return case.write(root / "cases", {"test_demo.py": TEST, "probe.py": PROBE})


def result(
    environment: str, verdict: Verdict, control: str = "", test: str = "t", at_work: bool = True
) -> TestResult:
    return TestResult(
        "demo",
        test,
        verdict,
        "because",
        "sim",
        environment,
        {"vllm": "0.8.5" if environment == "new" else "0.8.4", "six": "1"},
        started_at=86400.0,
        control=control,
        observation=Observation(
            Kind.PASSED, "probe", at_work=(Mechanism("counting", True),) if at_work else ()
        ),
    )


def lock(environment: str) -> str:
    return {"old": "0" * 16, "new": "1" * 16}[environment]


GOOD = [result("old", Verdict.REPRODUCED), result("new", Verdict.FIXED)]
REJECTED = [
    ImpostorRun("demo", name, "t", impostor, Verdict.INCONCLUSIVE, "")
    for name in ("old", "new")
    for impostor in Impostor
]


def proven(case: Case) -> proof.Proof:
    """Return a complete proof, with impostors."""
    evidence, wrong = proof.with_impostor_runs(
        case, proof.make_proof(case, [GOOD], lock)[0], REJECTED
    )
    assert wrong == []
    return evidence


def test_commits_outlast_changed_claims_and_not_changed_code(case: Case) -> None:
    code = code_fingerprint(case.directory)
    commit = proof.BisectedCommit(
        "fix", "vllm", "a" * 40, "b" * 40, "Fix it", "https://github.com/x/y/pull/1", 2, 3, 1.0,
        "2026-01-01", code,
    )  # fmt: skip
    proof.write_proof(case, replace(proven(case), commits=(commit,), fingerprint="0" * 16))
    assert proof.with_commits(case, proven(case)).commits == (commit,)
    (case.directory / "test_demo.py").write_text(TEST.replace("== 8", "> 1"))
    assert proof.with_commits(case, proven(case)).commits == ()


def test_rejected_impostors_are_counted_once_by_case_and_environment(case: Case) -> None:
    evidence, _ = proof.make_proof(case, [GOOD], lock)
    (first, *_) = (run for run in REJECTED if run.environment == "old")
    runs = [
        first,
        first,
        dataclasses.replace(first, impostor=Impostor.FLOODED_LOG),
        dataclasses.replace(first, environment="new", verdict=Verdict.REGRESSED),
        dataclasses.replace(first, case="another", impostor=Impostor.EMPTY_ANSWER),
    ]
    counted, _ = proof.with_impostor_runs(case, evidence, runs)
    counts = {entry.environment: entry.impostors for entry in counted.environments}
    assert counts == {"old": 2, "new": 0}


def test_proof_round_trip(case: Case) -> None:
    evidence, wrong = proof.make_proof(
        case, [GOOD, [*GOOD, result("old", Verdict.FIXED, test="control group")]], lock
    )
    assert wrong == []
    evidence, wrong = proof.with_impostor_runs(case, evidence, REJECTED)
    assert wrong == []
    assert proof.read_proof(proof.write_proof(case, evidence)) == evidence
    old, new = evidence.environments
    assert (old.impostors, new.impostors) == (len(Impostor), len(Impostor))
    assert (old.role, old.trials, old.tests, old.date, old.versions) == (
        "affected",
        2,
        {"FIXED": 1, "REPRODUCED": 2},
        "1970-01-02",
        {"vllm": "0.8.4"},
    )
    assert new.verdict is Verdict.FIXED
    assert proof.check_proof(case, lock) == []


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([GOOD[0]], "new: no result"),
        ([GOOD[1]], "old: no result"),
        (
            [result("old", Verdict.INCONCLUSIVE), GOOD[1]],
            "old: trial 1 of 1 was INCONCLUSIVE, not REPRODUCED: t: because",
        ),
        ([GOOD[0], result("new", Verdict.REGRESSED)], "new: trial 1 of 1 was REGRESSED, not FIXED"),
        ([*GOOD, result("old", Verdict.UNEXPECTEDLY_FIXED, test="other")], "UNEXPECTEDLY_FIXED"),
    ],
)
def test_insufficient_results(case: Case, results: list[TestResult], words: str) -> None:
    _, wrong = proof.make_proof(case, [results], lock)
    assert words in "\n".join(wrong)


def test_a_proof_that_shows_the_failure_of_another_case_is_refused(case: Case) -> None:
    sibling = replace(GOOD[0], same_as=("vllm-43920",))
    _, wrong = proof.make_proof(case, [[sibling, GOOD[1]]], lock)
    assert len(wrong) == 1 and wrong[0].startswith("old: what the test shows is the failure of")
    assert 'related = ["vllm-43920"]' in wrong[0]


def test_one_failed_trial_of_many_counts(case: Case) -> None:
    _, wrong = proof.make_proof(
        case, [GOOD, GOOD, [result("old", Verdict.UNEXPECTEDLY_FIXED), GOOD[1]]], lock
    )
    trial, rate = wrong
    assert "trial 3 of 3" in trial
    assert "showed in 2 of 3 runs" in rate and "5 trials show it with 99 % certainty" in rate


def test_too_few_rejected_impostors(case: Case) -> None:
    evidence, _ = proof.make_proof(case, [GOOD], lock)
    few = [
        trial
        for trial in REJECTED
        if trial.environment == "old" or trial.impostor in list(Impostor)[:5]
    ]
    proof.write_proof(case, proof.with_impostor_runs(case, evidence, few)[0])
    words = "new: 5 impostors were rejected, 6 are needed"
    assert proof.with_impostor_runs(case, evidence, few)[1] == [words]
    (problem,) = proof.check_proof(case, lock)
    assert problem.endswith(f"evidence.json: {words}; run `vllm-regress validate demo`")


def test_without_any_impostor_the_message_says_what_they_replace(case: Case) -> None:
    evidence, _ = proof.make_proof(case, [GOOD], lock)
    _, wrong = proof.with_impostor_runs(
        case, evidence, [trial for trial in REJECTED if trial.environment == "old"]
    )
    assert wrong == [
        "new: 0 impostors were rejected, 6 are needed: they replace answers of vllm_engine, vllm_server and vllm_probe,"
        " not those of vllm_engines"
    ]


def test_an_impostor_that_produced_the_verdict_is_reported(case: Case) -> None:
    evidence, _ = proof.make_proof(case, [GOOD], lock)
    fooled = dataclasses.replace(
        REJECTED[-1], verdict=Verdict.REGRESSED, reason="the documented words"
    )
    _, wrong = proof.with_impostor_runs(case, evidence, [*REJECTED[:-1], fooled])
    assert wrong == [
        "new: an impostor (engine killed) produced REGRESSED, so another failure passes for this one: the documented words"
    ]


@pytest.mark.parametrize("kind", ["hang", "crash", "engine-death"])
def test_hangs_and_crashes_need_a_control_leg(tmp_path: Path, kind: str) -> None:
    case = written(tmp_path, kind)
    assert "no control leg passed" in proof.make_proof(case, [GOOD], lock)[1][0]
    evidence, wrong = proof.make_proof(
        case, [[result("old", Verdict.REPRODUCED, control="passed"), GOOD[1]]], lock
    )
    assert wrong == []
    proof.write_proof(
        case,
        replace(
            evidence,
            environments=(
                replace(evidence.environments[0], control=""),
                evidence.environments[1],
            ),
        ),
    )
    assert "no control leg passed" in proof.check_proof(case, lock)[0]


@pytest.mark.parametrize("side", ["old", "new"])
def test_a_wrong_result_needs_a_positive_control_or_a_reason(case: Case, side: str) -> None:
    bare = [result(r.environment, r.verdict, at_work=r.environment != side) for r in GOOD]
    (wrong,) = proof.make_proof(case, [bare], lock)[1]
    assert wrong.startswith(
        f"{side}: t: nothing shows that its mechanism was at work; call vllm_at_work("
    )
    case.path.write_text(case.path.read_text() + '[control]\nnone = "a pass is an import"\n')
    assert proof.make_proof(load_case(case.path), [bare], lock)[1] == []


def test_a_declared_control_leg_must_pass_for_every_kind(case: Case) -> None:
    declared = CaseFile(omits="the second stage").write(case.directory.parent)
    assert "no control leg passed" in proof.make_proof(declared, [GOOD], lock)[1][0]
    assert (
        proof.make_proof(declared, [[result("old", Verdict.REPRODUCED, "passed"), GOOD[1]]], lock)[
            1
        ]
        == []
    )


def test_claims_and_code_have_separate_fingerprints(case: Case) -> None:
    claims, code = claims_fingerprint(case), code_fingerprint(case.directory)
    case.path.write_text(case.path.read_text().replace('"<0.8.5"', '"<0.8.4"'))
    changed = load_case(case.path)
    assert claims_fingerprint(changed) != claims and code_fingerprint(case.directory) == code
    plain, further = (
        CaseFile(symptom=line).write(case.directory.parent) for line in ("", 'all = ["x"]')
    )
    assert claims_fingerprint(plain) != claims_fingerprint(further)
    (case.directory / "probe.py").write_text("def count(n):\n    return n\n")
    assert code_fingerprint(case.directory) != code


def test_what_the_target_may_import_from_the_case_s_folder_is_code(case: Case) -> None:
    codes = {code_fingerprint(case.directory)}
    for name in ("plugins/slow.py", "plugins/slow-1.0.dist-info/entry_points.txt"):
        (case.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (case.directory / name).write_text("1")
        codes.add(code_fingerprint(case.directory))
    assert len(codes) == 3
    for name in (
        "README.md",
        "plugins/__pycache__/slow.cpython-311.pyc",
        ".pytest_cache/README.md",
    ):
        (case.directory / name).parent.mkdir(exist_ok=True)
        (case.directory / name).write_text("1")
    assert code_fingerprint(case.directory) in codes


CODE = '''"""What the module is for."""
TEXT = """one

two"""


def f(x):
    """Return x."""
    return f"{x!r} # {{}}"
'''


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("What the module is for.", "Other\n\nwords: ünï.", False),
        ('    """Return x."""\n', "", False),
        ('"""Return x."""', '"""Return x."""  # why', False),
        ("    return", "    # why\n\n    return", False),
        ("def f(x):", "def f(x):  # why", False),
        ("one\n\ntwo", "one\ntwo", True),  # not a docstring
        ("one", "one # one", True),
        ("# {{}}", "# {}", True),
        ('    """Return x."""\n', '    f"""{x.y}"""\n', True),  # runs
        ("(x)", "(x, y)", True),
        ("    return", "return", True),
        ("TEXT", "TEXT (", True),  # no Python
    ],
)
def test_comments_and_docstrings_are_not_code(
    case: Case, old: str, new: str, changes: bool
) -> None:
    probe = case.directory / "probe.py"
    probe.write_text(CODE)
    before = code_fingerprint(case.directory)
    assert CODE.count(old) >= 1
    probe.write_text(CODE.replace(old, new))
    assert (code_fingerprint(case.directory) != before) == changes


@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        ("case.toml", '"<0.8.5"', '"<0.8.4"', True),
        ("case.toml", "expected 8", "expected 9", True),
        ("case.toml", '["old"]', '["old", "older"]', True),
        ("case.toml", "one result", "one result of many", False),
        ("test_demo.py", "n=8", "n=9", True),
        ("probe.py", "return 1", "return 2", True),
        ("test_demo.py", "def ", "# A comment.\n\ndef ", False),
    ],
)
def test_changes_that_make_a_proof_stale(
    case: Case, file: str, old: str, new: str, stale: bool
) -> None:
    proof.write_proof(case, proven(case))
    path = case.directory / file
    path.write_text(path.read_text().replace(old, new))
    assert bool(proof.check_proof(load_case(case.path), lock)) == stale


def test_another_lock_or_lost_file_is_stale(case: Case) -> None:
    assert "missing" in proof.check_proof(case, lock)[0]
    proof.write_proof(case, proven(case))
    assert "new has another lock now" in proof.check_proof(case, lambda name: lock("old"))[0]


def test_an_edited_verdict_does_not_count(case: Case) -> None:
    evidence, _ = proof.make_proof(case, [GOOD], lock)
    old, new = evidence.environments
    proof.write_proof(
        case,
        replace(evidence, environments=(replace(old, verdict=Verdict.INCONCLUSIVE), new)),
    )
    assert "old showed INCONCLUSIVE" in proof.check_proof(case, lock)[0]


@pytest.mark.parametrize(
    "content", ["", "[]", '{"schema": 2}', "\x00", '{"schema": 1, "case": "../x"}', "[" * 100000]
)
def test_invalid_files_are_rejected(case: Case, content: str) -> None:
    (case.directory / proof.FILE).write_text(content)
    with pytest.raises(UsageError, match=r"evidence\.json"):
        proof.check_proof(case, lock)


def test_an_open_failure_needs_no_fixed_side(tmp_path: Path) -> None:
    case = written(tmp_path, "wrong-result")
    for path, words in ((case.path, '"<0.8.5"'), (case.path, '["new"]')):
        path.write_text(path.read_text().replace(words, "[]" if words == '["new"]' else '">=0.8"'))
    case = load_case(case.path)
    assert proof.make_proof(case, [GOOD[:1]], lock)[1] == []


class StandInRunner:
    """Return the given results, one list per run, and record the requests."""

    def __init__(self, *answers: list[TestResult]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, request: RunRequest) -> RunOutcome:
        self.asked.append(tuple(batch.environment for batch in request.batches))
        return RunOutcome(RunResult(tuple(self.answers.pop(0))))


def test_validate_proves_and_skips_proven_cases(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = StandInRunner(GOOD, GOOD, [GOOD[0]])
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pytest_vllm_regress.cli.validate.run_batches", runner)
    monkeypatch.setattr(
        "pytest_vllm_regress.cli.validate.check_environments", lambda jobs, **rest: None
    )
    monkeypatch.setattr("pytest_vllm_regress.cases.proofs.proof.check_proof.__defaults__", (lock,))
    monkeypatch.setattr("pytest_vllm_regress.cases.proofs.proof.make_proof.__defaults__", (lock,))
    met = [REJECTED, []]
    offered: list[list[str]] = []

    def try_impostors(cases: Sequence[Case], *_: object) -> list[ImpostorRun]:
        offered.append([case.id for case in cases])
        return met.pop(0)

    monkeypatch.setattr("pytest_vllm_regress.cli.validate.try_impostors", try_impostors)

    def validate(*arguments: str) -> int:
        return cli.main(["--cases", str(case.directory.parent), "validate", *arguments])

    assert validate("--check") == 1
    output = capsys.readouterr().out
    assert "evidence.json: missing" in output and output.endswith(
        "\n0 of 1 cases have a proof that is up to date\n"
    )
    assert validate("--trials", "2") == 0
    document = json.loads((case.directory / proof.FILE).read_text())
    assert [
        (environment["verdict"], environment["trials"]) for environment in document["environments"]
    ] == [
        ("REPRODUCED", 2),
        ("FIXED", 2),
    ]
    capsys.readouterr()
    assert validate("--check") == 0
    assert capsys.readouterr().out == "1 of 1 cases have a proof that is up to date\n"
    assert validate() == 0
    (case.directory / needs.FILE).unlink()
    assert validate("--check") == 1
    assert "needs.json: missing; run `vllm-regress " in capsys.readouterr().out
    assert validate() == 0
    assert (case.directory / needs.FILE).exists()
    assert runner.asked == [("old", "new")] * 2
    assert offered == [["demo"]]  # proven cases are not run again
    before = (case.directory / proof.FILE).read_bytes()
    assert validate("demo") == 1
    assert "NOT PROVEN  demo" in capsys.readouterr().out
    assert (case.directory / proof.FILE).read_bytes() == before
    assert offered[1:] == [[]]  # nor are failed ones
    runner.answers.append(GOOD)
    met.append(REJECTED[:1])
    assert validate("demo") == 1
    output = capsys.readouterr().out
    assert (
        "NOT PROVEN  demo: nothing was written\n    old: 1 impostors were rejected, 6 are needed\n"
        in output
    )
    assert "validate" not in output  # to repeat the same command would not help
    assert validate() == 0
    assert validate("--all", "--device", "tpu") == 2


def test_a_trial_that_shows_something_else_is_the_last(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_vllm_regress.cases.proofs.proof.make_proof.__defaults__", (lock,))
    answers = [GOOD, [GOOD[0], result("new", Verdict.REPRODUCED)]]
    runner = prove.ProofRunner(
        lambda batches: RunOutcome(RunResult(tuple(answers.pop(0)))), lambda cases: []
    )
    report = prove.validate(prove.ValidateRequest((case,), 5, lambda case_id: "validate"), runner)
    first, *_, last = report.cases[0].problems
    assert first.startswith("new: trial 2 of 2 was REPRODUCED, not FIXED")
    assert last == "trials left out, because they cannot change that: 3"
    assert not answers


@pytest.mark.parametrize(
    "changed",
    [
        "demo/prompts.json",
        "demo/data/table.csv",
        "conftest.py",
        "shared.py",
        "helpers/__init__.py",
        "helpers/deep.py",
        "../support.py",
    ],
)
def test_a_change_of_anything_that_a_test_may_read_makes_the_proof_stale(
    tmp_path: Path, changed: str
) -> None:
    case = CaseFile().write(
        tmp_path / "cases",
        {"test_demo.py": "import shared\nfrom helpers import deep\n" + TEST, "probe.py": PROBE},
    )
    folder = case.directory.parent
    files = {
        "demo/prompts.json": "{}",
        "demo/data/table.csv": "1",
        "conftest.py": "import support\n",
        "shared.py": "ONE = 1\n",
        "helpers/__init__.py": "",
        "helpers/deep.py": "from . import missing\nTWO = 2\n",
        "../support.py": "THREE = 3\n",
        "unrelated.py": "FOUR = 4\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    before = code_fingerprint(case.directory)
    (folder / "unrelated.py").write_text("FOUR = 5\n")
    (case.directory / "README.md").write_text("other words\n")
    assert code_fingerprint(case.directory) == before
    with (folder / changed).open("a") as file:
        file.write("\nCHANGED = 1\n")
    assert code_fingerprint(case.directory) != before
