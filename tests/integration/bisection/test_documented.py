"""``validate --commits``: compare the commit that a case names with the one that its own test
finds. Runs are simulated."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.audit.boundaries import Boundary
from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.proofs import proof
from pytest_vllm_regress.cases.proofs.fingerprint import case_fingerprint
from pytest_vllm_regress.cases.proofs.impostors import MIN_REJECTED
from pytest_vllm_regress.cases.proofs.proof import EnvironmentEvidence, Proof
from pytest_vllm_regress.environments import bases
from pytest_vllm_regress.environments.sources import set_clones
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.history.trace import ReleasePair, narrowed, release_pairs
from tests.helpers.histories import StandIn
from tests.helpers.repositories import RepositoryBuilder
from tests.unit.history.test_bisect import CASE

RIGHT = "https://github.com/vllm-project/vllm/pull/7"
OTHER = "https://github.com/vllm-project/vllm/pull/8"
Validate = Callable[..., int]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """Case ``demo``, with evidence for vllm 0.1 and 0.2."""
    case = dataclasses.replace(CASE, old=("vllm-0.1",), new=("vllm-0.2",)).write(tmp_path / "cases")
    proof.write_proof(
        case, evidence(case, ("vllm-0.1", "affected", "0.1"), ("vllm-0.2", "fixed", "0.2"))
    )
    return case


def evidence(case: Case, *roles: tuple[str, str, str], package: str = "vllm") -> Proof:
    environments = (
        EnvironmentEvidence(
            environment=environment,
            role=role,
            verdict=proof.EXPECTED_VERDICTS[role],
            device="sim",
            date="2025-04-01",
            lock="0" * 16,
            versions={package: version},
            trials=1,
            tests={proof.EXPECTED_VERDICTS[role].value: 1},
            control="passed",
            impostors=MIN_REJECTED,
        )
        for environment, role, version in roles
    )
    return Proof(case=case.id, fingerprint=case_fingerprint(case), environments=tuple(environments))


@pytest.fixture
def validate(
    case: Case, builder: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Validate:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(proof.check_proof, "__defaults__", (lambda environment: "0" * 16,))
    monkeypatch.setattr(bases, "newest_release", lambda package, day: "0.1")
    monkeypatch.setattr(bases, "releases", lambda package: ())

    def run(stand_in: StandIn, *more: str) -> int:
        monkeypatch.setattr(
            "pytest_vllm_regress.cli.validate.BatchRunner",
            lambda executor, options, progress: stand_in,
        )
        monkeypatch.setattr(
            "pytest_vllm_regress.cli.validate.build_with_cache", lambda say: lambda name: None
        )
        return cli.main(
            ["--cases", str(case.directory.parent), "validate", "--commits", "demo", *more]
        )

    return run


def say(case: Case, line: str) -> None:
    """Insert a line at the top of case.toml."""
    case.path.write_text(f"{line}\n{case.path.read_text()}")


def test_the_commit_that_the_case_names_is_recorded_and_kept(
    case: Case, builder: RepositoryBuilder, validate: Validate, capsys: pytest.CaptureFixture[str]
) -> None:
    say(case, f'fixed-by = ["{OTHER}", "{RIGHT}"]')
    stand_in = StandIn(builder)
    assert validate(stand_in) == 0
    assert f"TRACED      demo: fix {RIGHT}, {len(stand_in.ran)} runs" in capsys.readouterr().out
    (recorded,) = proof.read_proof(case.directory / proof.FILE).commits
    assert recorded.commit == builder.git("rev-parse", "main~1")
    assert (recorded.kind, recorded.package, recorded.address, recorded.candidates) == (
        "fix",
        "vllm",
        RIGHT,
        2,
    )
    assert (
        len(stand_in.ran) == 3
    )  # the two documented commits, one the parent of the other, and its parent
    assert proof.check_proof(load_case(case.path)) == []
    anew = evidence(case, ("vllm-0.1", "affected", "0.1"), ("vllm-0.2", "fixed", "0.2"))
    assert proof.with_commits(case, anew).commits == (recorded,)
    (case.directory / "probe.py").write_text("def probe(): pass\n")
    assert proof.with_commits(case, anew).commits == ()


def test_another_commit_is_an_error_and_correcting_it_needs_no_second_search(
    case: Case, builder: RepositoryBuilder, validate: Validate, capsys: pytest.CaptureFixture[str]
) -> None:
    say(case, f'fixed-by = ["{OTHER}"]')
    before = (case.directory / proof.FILE).read_bytes()
    assert validate(StandIn(builder)) == 1
    output = capsys.readouterr().out
    assert (
        f"{case.path}: fixed-by names {OTHER}, but it was {builder.git('rev-parse', 'main~1')[:10]}"
        in output
    )
    assert f'write fixed-by = ["{RIGHT}"]' in output
    assert (case.directory / proof.FILE).read_bytes() == before
    case.path.write_text(case.path.read_text().replace(OTHER, RIGHT))
    again = StandIn(builder)
    assert validate(again) == 0
    assert again.ran == [
        builder.git("rev-parse", "main~2")[:10]
    ]  # the parent, which the search does not run itself
    case.path.write_text(case.path.read_text().replace(f'"{RIGHT}"', f'"{OTHER}"'))
    (wrong,) = proof.check_proof(load_case(case.path))
    assert f"fixed-by names {OTHER}, but it was" in wrong
    assert proof.check_proof(load_case(case.path), commits=False) == []


def test_a_break_is_compared_with_broken_by(
    case: Case, builder: RepositoryBuilder, validate: Validate
) -> None:
    builder.git("tag", "v0.3", "main")
    culprit = builder.commit("broken again (#12)", {"vllm/core/engine.py": "broken = True\n"})
    builder.commit("more (#13)", {"vllm/even_more.py": ""})
    builder.git("tag", "v0.4")
    proof.write_proof(
        case, evidence(case, ("vllm-0.2", "fixed", "0.3"), ("vllm-0.1", "affected", "0.4"))
    )
    assert validate(StandIn(builder)) == 1
    say(case, 'broken-by = ["https://github.com/vllm-project/vllm/pull/12"]')
    assert validate(StandIn(builder)) == 0
    document = json.loads((case.directory / proof.FILE).read_text())
    assert [(commit["kind"], commit["commit"]) for commit in document["commits"]] == [
        ("break", culprit)
    ]


@pytest.mark.parametrize(
    ("url", "right"),
    [
        (RIGHT, True),
        ("https://github.com/vllm-project/vllm/commit/" + "a" * 40, True),
        ("https://github.com/vllm-project/vllm/commit/aaaaaaa", True),
        ("https://github.com/vllm-project/vllm/commit/aaaaaa", False),
        ("https://github.com/vllm-project/vllm/commit/", False),
        ("https://github.com/else/vllm/commit/aaaaaaa", False),
        (OTHER, False),
    ],
)
def test_a_commit_is_named_by_its_pull_request_or_its_id(url: str, right: bool) -> None:
    assert proof.names_commit([url], RIGHT, "a" * 40) is right


def test_nothing_is_recorded_without_a_clear_answer(
    case: Case, builder: RepositoryBuilder, validate: Validate, capsys: pytest.CaptureFixture[str]
) -> None:
    say(case, f'fixed-by = ["{OTHER}"]')
    assert (
        validate(StandIn(builder, chance=lambda run: run < 6)) == 1
    )  # fails in the search and passes afterwards
    assert "is not confirmed" in capsys.readouterr().out
    assert proof.read_proof(case.directory / proof.FILE).commits == ()


def test_an_interrupted_trace_resumes(
    case: Case, builder: RepositoryBuilder, validate: Validate
) -> None:
    say(case, f'fixed-by = ["{RIGHT}"]')
    first, second, whole = StandIn(builder, interrupt_at=1), StandIn(builder), StandIn(builder)
    assert validate(first) == 130
    assert validate(second) == 0
    assert validate(whole) == 0
    assert len(first.ran) + len(second.ran) == len(whole.ran)


def test_bad_input_is_explained(
    case: Case,
    builder: RepositoryBuilder,
    validate: Validate,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    beginning = ["--cases", str(case.directory.parent), "validate"]
    for arguments, words in (
        (["--commits"], "name cases"),
        (["--commits", "--all"], "name cases"),
        (["demo", "--env", "vllm-0.1"], "--env is for --commits"),
    ):
        assert cli.main([*beginning, *arguments]) == 2
        assert words in capsys.readouterr().err
    set_clones([str(tmp_path)])
    assert validate(StandIn(builder)) == 2
    assert "not a git repository" in capsys.readouterr().err
    (case.directory / proof.FILE).unlink()
    assert validate(StandIn(builder)) == 1
    assert "evidence.json: missing" in capsys.readouterr().out


def test_ends_are_neighbours_of_the_evidence(case: Case) -> None:
    roles = (
        ("e", "fixed", "0.8.5"),
        ("a", "affected", "0.10.2"),
        ("b", "affected", "0.9.2+cpu"),
        ("c", "fixed", "0.33.0"),
    )
    assert release_pairs(case, evidence(case, *roles)) == (
        ReleasePair("vllm", "0.8.5", "0.9.2", False),
        ReleasePair("vllm", "0.10.2", "0.33.0", True),
    )
    for useless in (
        (("a", "affected", "0.8.4"),),
        (("a", "affected", "0.8.4"), ("b", "fixed", "0.8.4")),
        (("a", "affected", ""), ("b", "fixed", "x")),
    ):
        with pytest.raises(UsageError, match="there is nothing to search between"):
            release_pairs(case, evidence(case, *useless))


def test_a_change_that_was_observed_between_adjacent_releases_is_looked_for_there(
    case: Case,
) -> None:
    def end(inside: str, outside: str, observed: bool = True, package: str = "vllm") -> Boundary:
        return Boundary(case.id, package, "", inside, outside, observed, "")

    fixed = ReleasePair("vllm", "0.11.2", "0.33.0", True)
    assert narrowed(fixed, [end("0.12.0", "0.11.2"), end("0.23.0", "0.24.0")]) == ReleasePair(
        "vllm", "0.23.0", "0.24.0", True
    )
    for useless in (
        end("0.23.0", "0.24.0", observed=False),
        end("0.24.0", "0.23.0"),
        end("0.10.2", "0.11.0"),
        end("0.23.0", "0.24.0", package="xgrammar"),
    ):
        assert narrowed(fixed, [useless]) == fixed
