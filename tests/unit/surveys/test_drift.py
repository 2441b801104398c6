"""Which dependency broke a release: the search over packages and their versions, on made-up
releases."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from pytest_vllm_regress.errors import BuildError, UsageError
from pytest_vllm_regress.surveys import drift as survey
from pytest_vllm_regress.surveys.drift import Attempt, DatedRelease, diagnose
from pytest_vllm_regress.surveys.drift_record import (
    BlamedPackage,
    Breakage,
    Drift,
    Pins,
    Stage,
    known_culprits,
    open_drifts,
    report,
    requirements,
)
from pytest_vllm_regress.util.report import to_markdown

FIRST_DAY = datetime.date(2025, 5, 1)
TODAY = datetime.date(2026, 11, 24)
INDEX = {
    "transformers": ("4.51", "4.55", "4.57", "5.0", "5.1"),
    "numpy": ("1.26", "2.0", "2.2", "2.4"),
    "openai": ("1.70", "1.90", "2.0"),
}
FIRST = {"transformers": "4.51", "numpy": "1.26", "openai": "1.70"}
Rule = Callable[[Mapping[str, Version]], Stage | None]


@dataclasses.dataclass(frozen=True)
class MadeUpRelease(DatedRelease):
    """A release whose stages fail by a rule on the installed versions."""

    rule: Rule = lambda versions: None
    tried: list[Pins] = dataclasses.field(default_factory=list)

    def versions(self, pins: Pins) -> dict[str, str]:
        if self.day < TODAY:
            return {"vllm": self.version, **FIRST}
        allowed = {
            name: [v for v in INDEX[name] if v in SpecifierSet(pins.get(name, ""))]
            for name in INDEX
        }
        if not all(allowed.values()):
            raise BuildError("cannot be resolved")
        return {"vllm": self.version, **{name: versions[-1] for name, versions in allowed.items()}}

    def attempt(
        self, pins: Pins, progress: Callable[[str], None], last: Stage = Stage.ANSWER
    ) -> Attempt:
        self.tried.append(dict(pins))
        try:
            versions = self.versions(pins)
        except BuildError as error:
            return Attempt(Stage.RESOLVE, str(error), str(error))
        failed = self.rule({name: Version(version) for name, version in versions.items()})
        if failed is None or [*Stage].index(failed) > [*Stage].index(last):
            return Attempt()
        return Attempt(
            failed,
            f"{failed} failed",
            "File site-packages/openai/x.py\nFile site-packages/transformers/y.py",
        )


@pytest.fixture(autouse=True)
def made_up_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "releases", lambda name: tuple(map(Version, INDEX[name])))
    monkeypatch.setattr(survey, "release_date", lambda package, version: FIRST_DAY)


def drift_of(
    rule: Rule, known: Mapping[str, tuple[str, str]] | None = None
) -> tuple[Drift, list[Pins]]:
    release = MadeUpRelease("0.8.5", TODAY, rule=rule)
    return diagnose(release, lambda line: None, known or {}), release.tried


def test_an_index_that_cannot_be_asked_is_no_property_of_the_first_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_index(package: str, version: str) -> datetime.date:
        raise BuildError("the package index cannot be reached")

    monkeypatch.setattr(survey, "release_date", no_index)
    with pytest.raises(BuildError, match="cannot be reached"):
        drift_of(lambda versions: Stage.SERVE)


def test_a_release_that_passes_is_installed_once() -> None:
    drift, tried = drift_of(lambda versions: None)
    assert drift.sound and tried == [{}]


def test_the_package_its_first_bad_version_and_the_pin_are_found_and_confirmed() -> None:
    drift, tried = drift_of(
        lambda versions: Stage.IMPORT if versions["transformers"] >= Version("4.57") else None
    )
    (breakage,) = drift.breakages
    assert breakage.stage is Stage.IMPORT
    assert breakage.culprits == (BlamedPackage("transformers", "4.51", "5.1", "4.55", "4.57"),)
    assert drift.pins == {"transformers": "<4.57"} and drift.confirmed
    assert tried[-1] == {"transformers": "<4.57"}
    assert drift.command == "pip install vllm==0.8.5 'transformers<4.57'"


def test_a_package_that_the_failure_does_not_name_is_found_too() -> None:
    drift, _ = drift_of(
        lambda versions: Stage.SERVE if versions["numpy"] >= Version("2.2") else None
    )
    assert drift.pins == {"numpy": "<2.2"} and drift.confirmed


def test_a_second_breakage_behind_the_first_one_is_found() -> None:
    def rule(versions: Mapping[str, Version]) -> Stage | None:
        if versions["transformers"] >= Version("5.0"):
            return Stage.IMPORT
        return Stage.ANSWER if versions["openai"] >= Version("2.0") else None

    drift, _ = drift_of(rule)
    assert [breakage.stage for breakage in drift.breakages] == [Stage.IMPORT, Stage.ANSWER]
    assert drift.pins == {"transformers": "<5.0", "openai": "<2.0"} and drift.confirmed


def test_a_failure_that_no_older_package_ends_has_no_culprit() -> None:
    drift, _ = drift_of(lambda versions: Stage.HELP)
    assert [breakage.culprits for breakage in drift.breakages] == [()] and not drift.confirmed


def test_a_version_that_cannot_be_tried_is_skipped() -> None:
    def rule(versions: Mapping[str, Version]) -> Stage | None:
        if versions["transformers"] == Version("4.57"):
            return Stage.INSTALL
        return Stage.SERVE if versions["transformers"] >= Version("5.0") else None

    drift, _ = drift_of(rule)
    (culprit,) = drift.breakages[0].culprits
    assert (culprit.good, culprit.bad) == ("4.55", "5.0")


def test_what_broke_another_release_is_tried_first() -> None:
    def rule(versions: Mapping[str, Version]) -> Stage | None:
        return Stage.SERVE if versions["numpy"] >= Version("2.2") else None

    _, blind = drift_of(rule)
    _, tried = drift_of(rule, {"numpy": ("2.0", "2.2")})
    assert tried[1:4] == [{"numpy": "==1.26"}, {"numpy": "==2.0"}, {"numpy": "==2.2"}]
    assert len(tried) < len(blind)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    broken, _ = drift_of(
        lambda versions: Stage.SERVE if versions["numpy"] >= Version("2.2") else None
    )
    sound = Drift("0.10.2", TODAY)
    record = tmp_path / "drift.jsonl"
    open_drifts(record).rewrite({drift.version: drift for drift in (broken, sound)})
    assert dict(open_drifts(record).entries) == {"0.8.5": broken, "0.10.2": sound}
    assert known_culprits([broken, sound]) == {"numpy": ("2.0", "2.2")}
    lines = to_markdown(report([broken, sound])).splitlines()
    rows = [line for line in lines if line.startswith("| 0.")]
    summary = "Of 2 releases, 1 pass as they are, 1 with the pins below, and 0 do not pass. Releases broken by each package: numpy 1."
    assert summary in lines
    assert rows[0].startswith("| 0.10.2 |") and "nothing fails" in rows[0]
    assert "numpy 1.26 -" in rows[1] and "| 2.2 |" in rows[1] and rows[1].endswith("| yes |")


@pytest.mark.parametrize(
    "document",
    [
        "[]",
        "{",
        '{"0.8.5": {}}',
        '{"store": "diagnoses of releases", "key": null}\n{"0.8.5": {"version": "0.8.5", "day": 5}}',
    ],
)
def test_a_damaged_record_is_refused(tmp_path: Path, document: str) -> None:
    record = tmp_path / "drift.jsonl"
    record.write_text(f"{document}\n")
    with pytest.raises(UsageError, match=r"drift\.jsonl"):
        open_drifts(record)


def test_text_of_packages_is_no_markup_in_the_table() -> None:
    breakage = Breakage(Stage.IMPORT, "<b>| @user")
    page = to_markdown(report([Drift("0.8.5", TODAY, (breakage,))]))
    (row,) = [line for line in page.splitlines() if line.startswith("| 0.8.5")]
    assert "` import: <b>\\| @user `" in row


def test_requirements_are_those_of_pip_install() -> None:
    assert requirements("0.8.5", {"b": "<5", "a": "==1"}) == ("vllm==0.8.5", "a==1", "b<5")
    assert all(map(Requirement, requirements("0.8.5", {"b": "<5"})))
