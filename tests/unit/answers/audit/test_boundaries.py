"""The table of verdicts beside the cases, and which ends of ranges were observed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from packaging.version import Version

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.audit import boundaries as audited
from pytest_vllm_regress.answers.audit.boundaries import (
    Boundary,
    Only,
    before_feature,
    boundaries,
    observation,
    remaining,
)
from pytest_vllm_regress.answers.audit.verdict_table import FILE, read_file, read_table, record
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.proofs.fingerprint import code_fingerprint
from pytest_vllm_regress.cases.results import RunResult, TestResult, write_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments import releases as index
from pytest_vllm_regress.errors import Cause, UsageError
from pytest_vllm_regress.runner.batch import Batch
from tests.helpers.cases import CaseFile

VERSIONS = ("0.8.4", "0.8.5", "0.8.5.post1", "0.9.0", "0.9.1")
DAY = 1_780_000_000.0  # 2026-05-28


def releases(package: str) -> tuple[Version, ...]:
    return tuple(map(Version, VERSIONS))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return CaseFile("one", affected=">=0.8.5,<0.9.1", old=(), new=()).write(tmp_path)


def result(
    verdict: Verdict, version: str, device: str = "sim", environment: str = ""
) -> TestResult:
    name = environment or f"vllm-{version}"
    return TestResult(
        "one", "one::test", verdict, "", device, name, {"vllm": version}, started_at=DAY
    )


def recorded(
    case: Case, outcomes: Mapping[str, Verdict], device: str = "sim"
) -> tuple[Boundary, ...]:
    record(
        case.directory.parent,
        [case],
        [result(verdict, version, device) for version, verdict in outcomes.items()],
    )
    return boundaries(case, read_table([case]), releases)


def test_an_end_is_observed_when_the_adjacent_releases_show_opposites(case: Case) -> None:
    lower, upper = recorded(
        case, {"0.8.4": Verdict.FIXED, "0.8.5": Verdict.REPRODUCED, "0.9.0": Verdict.REPRODUCED}
    )
    assert str(lower) == "vllm >=0.8.5 observed (0.8.5 shows it, 0.8.4 passes, on sim)"
    assert str(upper) == "vllm <0.9.1 inferred (0.9.0 shows it; 0.9.1 not run yet)"
    assert (upper.missing, upper.contradicted) == (("0.9.1",), False)


def test_a_post_release_is_a_release_of_its_own(case: Case) -> None:
    changed = dataclasses.replace(
        case, affected=(dataclasses.replace(case.affected[0], specifier=">=0.9"),)
    )
    (lower,) = recorded(changed, {"0.8.5": Verdict.FIXED, "0.9.0": Verdict.REPRODUCED})
    assert (lower.inside, lower.outside, lower.missing) == (
        "0.9.0",
        "0.8.5.post1",
        ("0.8.5.post1",),
    )


def test_each_alternative_of_a_range_has_its_ends(case: Case) -> None:
    changed = dataclasses.replace(
        case, affected=(dataclasses.replace(case.affected[0], specifier="<0.8.5 || >=0.9.1"),)
    )
    first, second = recorded(changed, {"0.9.0": Verdict.FIXED, "0.9.1": Verdict.REPRODUCED})
    assert (first.bound, first.inside, first.outside) == ("<0.8.5", "0.8.4", "0.8.5")
    assert str(second) == "vllm >=0.9.1 observed (0.9.1 shows it, 0.9.0 passes, on sim)"


def test_verdicts_on_different_devices_observe_nothing(case: Case) -> None:
    recorded(case, {"0.9.0": Verdict.REPRODUCED}, "cpu")
    _, upper = recorded(case, {"0.9.1": Verdict.FIXED}, "sim")
    assert upper.state == "inferred"


@pytest.mark.parametrize(
    ("cause", "state", "reason"),
    [
        (
            Cause.RELEASE,
            "with the feature",
            "0.9.0 shows it, 0.9.1 does not have the feature, on sim",
        ),
        (Cause.HARNESS, "inferred", "0.9.0 shows it; 0.9.1 cannot be run by the harness"),
        (Cause.PACKAGE, "inferred", "0.9.0 shows it; 0.9.1 lacks a package"),
        (Cause.FAILURE, "inferred", "0.9.0 shows it; 0.9.1 has another failure in the way"),
        (None, "inferred", "0.9.1 was not applicable, for a reason not recorded"),
    ],
)
def test_only_a_missing_feature_makes_an_end_observed(
    case: Case, cause: Cause | None, state: str, reason: str
) -> None:
    outside = replace(result(Verdict.NOT_APPLICABLE, "0.9.1"), cause=cause)
    record(case.directory.parent, [case], [result(Verdict.REPRODUCED, "0.9.0"), outside])
    _, upper = boundaries(case, read_table([case]), releases)
    assert upper.state == state
    assert upper.observed == (cause is Cause.RELEASE)
    assert reason in upper.reason
    assert upper.missing == (() if cause else ("0.9.1",))


def test_a_release_older_than_the_feature_does_not_have_the_failure(case: Case) -> None:
    lacking = replace(result(Verdict.NOT_APPLICABLE, "0.8.5"), cause=Cause.RELEASE)
    shown = result(Verdict.REPRODUCED, "0.9.0")
    table = read_table([case]).with_results([lacking, shown])
    older = [before_feature(case, {"vllm": version}, table) for version in ("0.8.1", "0.8.5")]
    assert older == [True, True]
    assert not before_feature(case, {"vllm": "0.9.0"}, table)
    assert not before_feature(case, {"torch": "2.0"}, table)
    harness = replace(lacking, cause=Cause.HARNESS)
    assert not before_feature(case, {"vllm": "0.8.5"}, read_table([case]).with_results([harness]))


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (Verdict.INCONCLUSIVE, "0.9.1 inconclusive"),
        (Verdict.REGRESSED, "0.9.1 shows it, which contradicts the range"),
    ],
)
def test_why_an_end_is_only_inferred(case: Case, verdict: Verdict, reason: str) -> None:
    _, upper = recorded(case, {"0.9.0": Verdict.REPRODUCED, "0.9.1": verdict})
    assert (upper.observed, upper.contradicted) == (False, verdict is Verdict.REGRESSED)
    assert reason in upper.reason


def test_a_release_inside_that_passes_contradicts_the_range(case: Case) -> None:
    _, upper = recorded(case, {"0.9.0": Verdict.FIXED, "0.9.1": Verdict.FIXED})
    assert upper.contradicted
    assert upper.reason == "0.9.0 passes, which contradicts the range; 0.9.1 passes"


def test_a_run_with_a_sound_version_of_another_package_contradicts_nothing(case: Case) -> None:
    openai = dataclasses.replace(case.affected[0], package="openai", specifier="<2.25")
    both = dataclasses.replace(case, affected=(case.affected[0], openai))
    upper = recorded(both, {"0.9.0": Verdict.FIXED, "0.9.1": Verdict.FIXED})[
        1
    ]  # with an openai outside its range
    assert (upper.observed, upper.contradicted) == (False, False)
    assert upper.reason == "0.9.0 passes; 0.9.1 passes"


def test_a_failure_outside_with_another_package_contradicts_the_range(case: Case) -> None:
    pinned = [
        result(Verdict.REPRODUCED, "0.8.5", environment="vllm-0.8.5+outlines==0.1.0"),
        result(Verdict.REGRESSED, "0.8.4", environment="vllm-0.8.4+outlines==0.1.0"),
    ]
    record(case.directory.parent, [case], [result(Verdict.FIXED, "0.8.4"), *pinned])
    lower, _ = boundaries(case, read_table([case]), releases)
    assert (lower.observed, lower.contradicted) == (False, True)
    assert "0.8.4 shows it, which contradicts the range" in lower.reason


def test_an_inconclusive_run_is_repeated(case: Case) -> None:
    _, upper = recorded(case, {"0.9.0": Verdict.REPRODUCED, "0.9.1": Verdict.INCONCLUSIVE})
    assert upper.missing == ("0.9.1",)


def test_results_are_judged_by_the_present_range(case: Case) -> None:
    """0.9.0 was judged when the range ended earlier."""
    recorded(case, {"0.9.0": Verdict.REGRESSED, "0.8.4": Verdict.UNEXPECTEDLY_FIXED})
    verdicts = {entry.environment: entry.verdict for entry in read_table([case]).of_case("one")}
    assert verdicts == {"vllm-0.9.0": Verdict.REPRODUCED, "vllm-0.8.4": Verdict.FIXED}


def test_only_what_others_can_repeat_is_recorded_and_a_clear_verdict_stays(case: Case) -> None:
    place = case.directory.parent
    local = [
        result(Verdict.FIXED, "0.9.1", environment=name) for name in ("vllm@abc", "/bin/python")
    ]
    assert record(place, [case], [*local, result(Verdict.FIXED, "0.9.1")]) == 1
    assert record(place, [case], [result(Verdict.INCONCLUSIVE, "0.9.1")]) == 0
    assert (place / FILE).read_text().splitlines() == [
        '{"schema": 1, "verdicts": {',
        ' "one": {',
        '   "vllm-0.9.1 sim": "FIXED 2026-05-28"',
        " }",
        "}}",
    ]


def test_a_verdict_names_the_test_that_gave_it(case: Case) -> None:
    place, later = (
        case.directory.parent,
        replace(result(Verdict.FIXED, "0.9.1"), code="0123456789abcdef"),
    )
    assert record(place, [case], [result(Verdict.FIXED, "0.9.1")]) == 1
    assert [record(place, [case], [later]) for _ in range(2)] == [1, 0]
    assert [(entry.verdict, entry.code) for entry in read_file(place / FILE)["one"]] == [
        (Verdict.FIXED, later.code)
    ]


def test_the_files_of_a_case_are_read_once_for_all_releases(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def fingerprint(folder: Path) -> str:
        read.append(folder)
        return "0" * 16

    monkeypatch.setattr(audited, "code_fingerprint", fingerprint)
    batches = [Batch(f"vllm-{version}", (case,), {}) for version in VERSIONS]
    assert len(remaining([case], batches, [Only.MISSING])) == len(VERSIONS)
    assert read == [case.directory]


def test_an_audit_says_where_a_failure_was_observed(case: Case) -> None:
    recorded(case, {"0.9.0": Verdict.REPRODUCED})
    table = read_table([case])
    assert (
        observation(case, {"vllm": "0.9.0+cu129"}, table)
        == "observed on vllm 0.9.0+cu129 (sim, 2026-05-28)"
    )
    assert observation(case, {"vllm": "0.8.5"}, table) == ""


@pytest.mark.parametrize(
    "text", ["[]", '{"schema": 2, "verdicts": {}}', '{"schema": 1, "verdicts": []}', '{"schema": 1, "verdicts": {"a": {"b": "FIXED"}}}']
)  # fmt: skip
def test_an_invalid_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UsageError, match=FILE):
        read_file(tmp_path / FILE)


def test_show_counts_the_last_runs_of_this_machine(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pytest_vllm_regress.answers.audit.boundaries.known_releases", releases)
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    outcomes = [("0.9.0", Verdict.INCONCLUSIVE), ("0.9.0", Verdict.REPRODUCED)]
    for at, (version, verdict) in enumerate([*outcomes, ("0.9.1", Verdict.FIXED)]):
        code = code_fingerprint(case.directory)
        seen = replace(result(verdict, version), code=code, started_at=DAY + at)
        write_results(tmp_path / "cache" / "results" / f"{at}.json", RunResult((seen,)))
    assert cli.main(["--cases", str(tmp_path), "show", "one"]) == 0
    assert "boundary:     vllm <0.9.1 observed" in capsys.readouterr().out


def test_commands_show_and_record_boundaries(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pytest_vllm_regress.answers.audit.boundaries.known_releases", releases)
    monkeypatch.setattr(index, "releases", releases)
    monkeypatch.setattr(index, "known_releases", releases)
    code = code_fingerprint(case.directory)
    outcomes = {"0.9.0": Verdict.REPRODUCED, "0.9.1": Verdict.FIXED}
    outcome = RunResult(
        tuple(replace(result(verdict, version), code=code) for version, verdict in outcomes.items())
    )
    write_results(tmp_path / "results.json", outcome)
    command = ["--cases", str(tmp_path)]
    assert cli.main([*command, "report", str(tmp_path / "results.json"), "--write"]) == 0
    assert "2 verdicts are new" in capsys.readouterr().out
    assert cli.main([*command, "list", "--boundaries", "--format", "json"]) == 0
    assert [end["observed"] for end in json.loads(capsys.readouterr().out)] == [False, True]
    assert cli.main([*command, "show", "one"]) == 0
    assert "boundary:     vllm <0.9.1 observed" in capsys.readouterr().out
    plan = [
        *command,
        "matrix",
        "--releases",
        ">0",
        "--only",
        "boundaries",
        "--dry-run",
        "--format",
        "github",
    ]
    assert cli.main(plan) == 0
    (first, second) = json.loads(capsys.readouterr().out)["include"]
    assert first["environments"] + second["environments"] == ["vllm-0.8.4", "vllm-0.8.5"]
    assert cli.main([*plan[:4], ">0.9", *plan[5:]]) == 2
    assert "has every end of a range among these releases" in capsys.readouterr().err
    plan = [
        *command,
        "matrix",
        "--releases",
        ">=0.9",
        "--only",
        "missing",
        "--dry-run",
        "--format",
        "github",
    ]
    assert cli.main([*plan[:4], ">0", *plan[5:]]) == 0
    jobs = json.loads(capsys.readouterr().out)["include"]
    assert [name for job in jobs for name in job["environments"]] == [
        "vllm-0.8.4",
        "vllm-0.8.5",
        "vllm-0.8.5.post1",
    ]
    assert all("--only missing" in job["command"] for job in jobs)
    assert cli.main(plan) == 2
    assert "a clear one for every case in these environments" in capsys.readouterr().err
    (case.directory / "probe.py").write_text("# the probe is another one now\n")
    assert cli.main(plan) == 0
    jobs = json.loads(capsys.readouterr().out)["include"]
    assert [name for job in jobs for name in job["environments"]] == ["vllm-0.9.0", "vllm-0.9.1"]
