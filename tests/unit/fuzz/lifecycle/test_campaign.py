"""A campaign of stories finds and shrinks what is wrong, goes on where it was killed, and its files replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.lifecycle.campaign import CampaignPlan, StoryCampaign
from pytest_vllm_regress.fuzz.lifecycle.finding import load, replay
from pytest_vllm_regress.fuzz.lifecycle.history import Problem
from pytest_vllm_regress.fuzz.lifecycle.story import Action, Story, drawn, reduced

PLAN = CampaignPlan(seed=2, examples=40)
WRONG = {Action.LOAD, Action.TERM}


class Checker:
    """Stands in for ``StoryChecker``: stories with these actions are wrong. ``dies_after``: number of stories after which it is killed."""

    environment, version = "vllm-0.33.0", "0.33.0"

    def __init__(self, wrong: set[Action], dies_after: int = 10**9) -> None:
        self.versions = {"vllm": "0.33.0"}
        self.stories = 0
        self._wrong, self._dies_after = wrong, dies_after

    def run(self, story: Story) -> list[Problem]:
        self.stories += 1
        if self.stories > self._dies_after:
            raise KeyboardInterrupt
        return [Problem("something left", "a core")] if self._wrong and self._wrong <= set(story.actions) else []


def run(checker: Checker, folder: Path, plan: CampaignPlan = PLAN) -> StoryCampaign:
    folder.mkdir(exist_ok=True)
    campaign = StoryCampaign(checker, plan, folder, lambda line: None)  # type: ignore[arg-type]
    campaign.run()
    return campaign


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    campaign = run(Checker(set()), tmp_path)
    assert campaign.findings == []
    assert len(campaign.steps) == len(drawn(PLAN.examples, PLAN.seed * 1000))


def test_what_is_wrong_is_shrunk_to_the_actions_that_it_needs(tmp_path: Path) -> None:
    (finding,) = run(Checker(WRONG), tmp_path).findings
    assert set(finding.story.actions) == WRONG
    assert finding.story.workers == 1


def test_a_campaign_that_was_killed_resumes_with_the_same_findings(tmp_path: Path) -> None:
    whole = run(Checker(WRONG), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(Checker(WRONG, dies_after=9), tmp_path / "killed")
    resumed = run(Checker(WRONG), tmp_path / "killed")
    assert [finding.to_json() for finding in resumed.findings] == [finding.to_json() for finding in whole.findings]
    assert [step["label"] for step in resumed.steps] == [step["label"] for step in whole.steps]


def test_a_finding_is_a_file_that_replays(tmp_path: Path) -> None:
    (finding,) = run(Checker(WRONG), tmp_path).findings
    read = load(tmp_path / finding.name)
    assert read == finding
    assert replay(read, Checker(WRONG))[0] == "STILL FAILS"  # type: ignore[arg-type]
    assert replay(read, Checker(set()))[0] == "FIXED"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"story": {"actions": ["rm"], "workers": 1}}, {"problem": {"kind": 1, "words": ""}}]
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    (finding,) = run(Checker(WRONG), tmp_path).findings
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**finding.to_json(), **change}))
    with pytest.raises(UsageError, match=r"wrong\.json"):
        load(path)


def test_the_same_seed_draws_the_same_stories_with_every_end() -> None:
    stories = drawn(60, 1)
    assert stories == drawn(60, 1)
    assert stories != drawn(60, 2)
    assert {action for story in stories for action in story.actions} == {*Action}


def test_a_story_is_reduced_in_one_pass() -> None:
    long = Story((Action.ASK, Action.LOAD, Action.STREAM, Action.RESET, Action.TERM), 2)
    tried: list[Story] = []

    def is_wrong(story: Story) -> bool:
        tried.append(story)
        return set(story.actions) >= WRONG

    assert reduced(long, is_wrong) == Story((Action.LOAD, Action.TERM))
    assert len(tried) <= len(long.actions) + 2
