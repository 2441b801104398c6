"""Templates of new cases have the controls that a proof needs, and their evidence environments can
exist."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cases.model import NEEDS_AT_WORK, NEEDS_CONTROL_LEG
from pytest_vllm_regress.cases.observation import FAILURES
from pytest_vllm_regress.cases.proofs import lint
from pytest_vllm_regress.cases.scaffold import (
    PLACEHOLDER,
    TEMPLATES,
    Draft,
    GitHubReport,
    create_case,
)
from pytest_vllm_regress.errors import Kind
from pytest_vllm_regress.util.patterns import search
from tests.helpers.cases import project_cases

FRONTS = tuple(
    name for name in TEMPLATES if name not in ("finding", "request")
)  # these need a finding
every_template = pytest.mark.parametrize(
    ("front", "kind"), list(itertools.product(FRONTS, FAILURES)), ids=lambda value: str(value)
)


@every_template
def test_templates_follow_the_rules_of_validate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], front: str, kind: Kind
) -> None:
    new = ["new", "17173", "--front", front, "--kind", kind, "--affected", "<0.8.5"]
    assert (
        cli.main(
            [
                "--cases",
                str(tmp_path),
                *new,
                "--affected-env",
                "vllm-0.8.4",
                "--fixed-env",
                "vllm-0.8.5",
            ]
        )
        == 0
    )
    assert "warning" not in capsys.readouterr().err
    case = load_case(tmp_path / "vllm-17173" / "case.toml")
    assert lint.lint_case(case, (case, *project_cases())) == []
    assert case.symptom.phases == (("probe",) if front == "probe" else ("request",))
    assert case.control.declared == (kind in NEEDS_CONTROL_LEG)
    test = (case.directory / "test_vllm_17173.py").read_text()
    (function,) = [node for node in ast.parse(test).body if isinstance(node, ast.FunctionDef)]
    parameters = {argument.arg for argument in function.args.args}
    assert ("vllm_leg" in parameters) == case.control.declared
    assert "vllm_at_work" in parameters or not NEEDS_AT_WORK.intersection(case.symptom.kinds)
    assert all(len(line) <= 120 for line in test.splitlines())
    assert cli.main(["--cases", str(tmp_path), "show", "vllm-17173"]) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("front", ["offline", "async", "serve"])
@pytest.mark.parametrize("kind", [Kind.ENGINE_DEATH, Kind.WRONG_RESULT])
def test_a_test_of_an_engine_s_death_asks_it_before_it_asserts(
    tmp_path: Path, front: str, kind: Kind
) -> None:
    case = create_case(tmp_path, GitHubReport("a/b", 1), Draft(front=front, kind=kind))
    (file,) = case.directory.glob("test_*.py")
    code = file.read_text()
    ast.parse(code)
    assert code.count(".check()") == 1
    assert (code.index(".check()") < code.index("    assert ")) is (kind is Kind.ENGINE_DEATH)


@pytest.mark.parametrize("front", FRONTS)
def test_the_pattern_is_that_of_the_test_or_a_placeholder(tmp_path: Path, front: str) -> None:
    asserted = create_case(tmp_path, GitHubReport("a/b", 1), Draft(front=front)).symptom.pattern
    value = TEMPLATES[front].subject
    assert f"{{{TEMPLATES[front].trigger}}}" in TEMPLATES[front].code and str(value) in asserted
    assert search(asserted, TEMPLATES[front].pattern.replace(r"\d+", "7")) is not None
    other = create_case(tmp_path, GitHubReport("a/b", 2), Draft(front=front, kind="exception"))
    assert other.symptom.pattern == PLACEHOLDER


def test_a_control_by_engine_fields_needs_no_leg_in_the_test(tmp_path: Path) -> None:
    case = create_case(
        tmp_path, GitHubReport("a/b", 1), Draft(kind="hang", control={"pipeline_parallel_size": 1})
    )
    assert (case.control.omits, dict(case.control.changes)) == (
        "pipeline_parallel_size other than 1",
        {"pipeline_parallel_size": 1},
    )
    assert "vllm_leg" not in (case.directory / "test_b_1.py").read_text()


def test_new_says_which_requests_raise_an_error_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = ["--cases", str(tmp_path), "new", "--front", "serve", "--set", "fixed-by=16863"]
    assert cli.main([*new, "1", "--kind", "exception"]) == 0
    assert "`get` and `client` return an error status" in capsys.readouterr().err
    assert cli.main([*new, "2"]) == 0
    assert "error status" not in capsys.readouterr().err
    assert load_case(tmp_path / "vllm-2" / "case.toml").fixed_by == (
        "https://github.com/vllm-project/vllm/pull/16863",
    )


def test_new_names_a_pattern_that_is_still_that_of_the_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = ["--cases", str(tmp_path), "new"]
    assert cli.main([*new, "1", "--front", "serve"]) == 0
    said = capsys.readouterr().err
    assert "Next: set symptom.pattern" in said and r"'expected 2 choices, got \\d+'" in said
    assert cli.main([*new, "2", "--front", "serve", "--set", "pattern=expected 9 choices"]) == 0
    assert "symptom.pattern" not in capsys.readouterr().err


def test_new_asks_for_a_missing_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--cases", str(tmp_path), "new", "1", "--kind", "engine-death"]) == 0
    assert "to a text that only this failure prints" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm-0.8.55", "vllm has no release 0.8.55; close to it: 0.8.5"),
        ("vlm-0.8.5", "unknown environment 'vlm-0.8.5'. Did you mean vllm-0.8.5?"),
        (
            "vllm-0.8.4+lm-format-enforcer==0.10.55",
            "lm-format-enforcer has no release 0.10.55; close to it: 0.10.5",
        ),
        (
            "lm-format-enforcer-0.10.60",
            "lm-format-enforcer has no release 0.10.60; close to it: 0.10.6",
        ),
    ],
)
@pytest.mark.parametrize("option", ["--affected-env", "--fixed-env"])
def test_an_impossible_environment_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, name: str, words: str
) -> None:
    assert cli.main(["--cases", str(tmp_path), "new", "1", option, name]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["vllm-0.8.5.post1", "vllm-0.8.3rc1", "vllm-0.8.4-lmfe-0.10.3", "vllm0.8.4-sim"]
)
def test_a_possible_environment_is_accepted(tmp_path: Path, name: str) -> None:
    case = create_case(tmp_path, GitHubReport("a/b", 1), Draft(affected_env=(name,)))
    assert case.evidence.affected == (name,)


def test_the_index_is_asked_about_newer_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    from packaging.version import Version

    from pytest_vllm_regress.environments import names
    from pytest_vllm_regress.errors import BuildError

    def away(package: str) -> tuple[Version, ...]:
        raise BuildError("the index is away")

    monkeypatch.setattr(names, "releases", lambda package: (Version("0.33.0"), Version("0.99.0")))
    assert names.unavailable_reason("vllm-0.99.0") == ""
    assert "vllm has no release 0.98.0" in names.unavailable_reason("vllm-0.98.0")
    assert names.unavailable_reason("vllm-0.98.0", ask=False) == ""
    monkeypatch.setattr(names, "releases", away)
    assert names.unavailable_reason("vllm-0.98.0") == ""


def test_show_warns_about_impossible_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = create_case(tmp_path, GitHubReport("a/b", 1), Draft(affected_env=("vllm-0.8.4",)))
    case.path.write_text(case.path.read_text().replace("vllm-0.8.4", "vllm-0.8.44"))
    assert cli.main(["--cases", str(tmp_path), "show", "b-1"]) == 0
    assert (
        "evidence: environment 'vllm-0.8.44': vllm has no release 0.8.44" in capsys.readouterr().err
    )
