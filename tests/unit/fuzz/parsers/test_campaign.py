"""A campaign resumes where it was killed, gives the same findings for the same seed, and its files
replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.parsers import campaign as campaigns
from pytest_vllm_regress.fuzz.parsers.campaign import CampaignPlan, ParserCampaign
from pytest_vllm_regress.fuzz.parsers.checker import ParserName, Work
from pytest_vllm_regress.fuzz.parsers.finding import load, replay
from pytest_vllm_regress.fuzz.parsers.formats import Format
from pytest_vllm_regress.fuzz.parsers.question import Question, Reply
from pytest_vllm_regress.fuzz.stepped import JOURNAL
from tests.unit.fuzz.parsers.stand_in import FORM, Fault, StandIn, loses_calls_that_come_at_once

PLAN = CampaignPlan(seed=3, examples=40)


class Checker:
    """Stands in for ``ParserChecker``.

    ``dies_after``: number of requests after which it is killed.
    """

    environment, version = "vllm-0.11.2", "0.11.2"

    def __init__(
        self, fault: Fault = loses_calls_that_come_at_once, dies_after: int = 10**9
    ) -> None:
        self.work = Work()
        self.versions = {"vllm": "0.11.2", "transformers": "4.57"}
        self._parser, self._left = StandIn(fault), dies_after

    def registered(self) -> tuple[list[ParserName], list[ParserName]]:
        return [ParserName("tool", "one", ("alias",)), ParserName("tool", "two")], [
            ParserName("tool", "broken")
        ]

    def ask(self, parser: ParserName, form: Format, questions: Sequence[Question]) -> list[Reply]:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return self._parser(questions)


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        campaigns, "formats_of", lambda kind, name: (FORM,) if name in ("one", "two") else ()
    )


def run(checker: Checker, folder: Path, plan: CampaignPlan = PLAN) -> ParserCampaign:
    folder.mkdir(exist_ok=True)
    campaign = ParserCampaign(checker, plan, folder, lambda line: None)  # type: ignore[arg-type]
    campaign.run()
    return campaign


def test_every_parser_is_asked_and_its_findings_are_files(tmp_path: Path) -> None:
    campaign = run(Checker(), tmp_path)
    assert [step["label"] for step in campaign.steps] == ["one", "two"]
    assert campaign.coverage.registered == 4
    assert campaign.coverage.unusable == {"broken": "its class cannot be loaded"}
    names = {path.name for path in tmp_path.glob("parser-*.json")}
    assert names == {finding.name for finding in campaign.findings}
    assert {finding.parser.name for finding in campaign.findings} == {"one", "two"}


def test_a_campaign_that_was_killed_resumes_with_the_same_findings(tmp_path: Path) -> None:
    whole = run(Checker(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(Checker(dies_after=8), tmp_path / "killed")
    resumed = run(Checker(), tmp_path / "killed")
    assert [finding.to_json() for finding in resumed.findings] == [
        finding.to_json() for finding in whole.findings
    ]
    assert len(resumed.steps) == len(whole.steps)


def test_finished_steps_are_not_run_again(tmp_path: Path) -> None:
    run(Checker(), tmp_path)
    journal = (tmp_path / JOURNAL).read_text()
    run(Checker(dies_after=2), tmp_path)  # the two questions whether the parsers read the format
    assert (tmp_path / JOURNAL).read_text() == journal


def test_the_budget_counts_over_resumptions(tmp_path: Path) -> None:
    plan = CampaignPlan(seed=3, examples=40, minutes=1, rounds=None)
    tmp_path.joinpath(JOURNAL).write_text(
        json.dumps(
            {"plan": ParserCampaign(Checker(), plan, tmp_path, print).key, "spent": 61, "steps": []}  # type: ignore[arg-type]
        )
    )
    assert run(Checker(), tmp_path, plan).steps == []


def test_the_journal_of_another_campaign_is_refused(tmp_path: Path) -> None:
    run(Checker(), tmp_path)
    with pytest.raises(UsageError, match="another campaign"):
        run(Checker(), tmp_path, CampaignPlan(seed=4, examples=40))


def test_an_unknown_parser_is_refused_with_the_names_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'three'.*alias, broken, one, two"):
        run(Checker(), tmp_path, CampaignPlan(parsers=("three",)))


def test_a_finding_replays(tmp_path: Path) -> None:
    finding = load(tmp_path / run(Checker(), tmp_path).findings[0].name)
    assert replay(finding, Checker())[0] == "STILL FAILS"  # type: ignore[arg-type]
    assert replay(finding, Checker(lambda answer, pieces: answer))[0] == "FIXED"  # type: ignore[arg-type]
    other = replay(finding, Checker(lambda answer, pieces: {**answer, "finished": False}))  # type: ignore[arg-type]
    assert other[0] == "STILL FAILS"
    assert other[1].startswith("in another way: no end")


@pytest.mark.parametrize(
    ("key", "value"),
    [("format", 2), ("parser", {"kind": "x"}), ("surplus", 1), ("kinds", ["never"])],
)
def test_a_damaged_finding_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / run(Checker(), tmp_path).findings[0].name
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(UsageError, match=path.name):
        load(path)
