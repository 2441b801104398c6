"""A campaign of stories finds and shrinks problems, resumes after it was killed, and its findings
can be replayed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.campaign import Campaign
from pytest_vllm_regress.fuzz.drawing import drawn
from pytest_vllm_regress.fuzz.finding import Problem
from pytest_vllm_regress.fuzz.hunter import CampaignPlan, load
from pytest_vllm_regress.fuzz.lifecycle.story_hunter import (
    Action,
    Story,
    StoryFinding,
    StoryHunter,
    smaller_stories,
    stories,
)
from pytest_vllm_regress.fuzz.reduce import Effort, reduce
from pytest_vllm_regress.util.codec import encode

PLAN = CampaignPlan(seed=2, examples=40)
WRONG = {Action.LOAD, Action.TERM}


class Checker:
    """Stands in for ``StoryServers``: stories with these actions are wrong.

    Args:
        dies_after: number of stories after which it is killed.
        meets: where its first story waits for that of another checker.
    """

    def __init__(
        self, wrong: set[Action], dies_after: int = 10**9, meets: Barrier | None = None
    ) -> None:
        self.stories = 0
        self._wrong, self._dies_after, self._meets = wrong, dies_after, meets

    def run(self, story: Story) -> list[Problem]:
        self.stories += 1
        if self.stories == 1 and self._meets:
            self._meets.wait(timeout=60)
        if self.stories > self._dies_after:
            raise KeyboardInterrupt
        return (
            [Problem("something left", "a core")]
            if self._wrong and self._wrong <= set(story.actions)
            else []
        )


StoryCampaign = Campaign[Any, Any, StoryFinding]


def hunter(*checkers: Checker) -> StoryHunter:
    return StoryHunter(checkers, "vllm-0.33.0", {"vllm": "0.33.0"})  # type: ignore[arg-type]


def run(*checkers: Checker, folder: Path, plan: CampaignPlan = PLAN) -> StoryCampaign:
    tested = hunter(*checkers)
    campaign = Campaign(tested, plan, folder, lambda line: None)
    with tested.lanes:
        campaign.run()
    return campaign


def test_several_servers_find_the_same_and_share_the_stories(tmp_path: Path) -> None:
    alone = run(Checker(WRONG), folder=tmp_path / "alone")
    both = Barrier(2)  # passes only if two stories happen at the same time
    checkers = [Checker(WRONG, meets=both) for _ in range(2)]
    shared = run(*checkers, folder=tmp_path / "shared")
    assert shared.findings == alone.findings
    assert [step.label for step in shared.steps] == [step.label for step in alone.steps]
    assert all(checker.stories for checker in checkers)


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    campaign = run(Checker(set()), folder=tmp_path)
    assert campaign.findings == []
    assert len(campaign.steps) == len(drawn(stories(), PLAN.examples, PLAN.seed_of(0)))


def test_what_is_wrong_is_shrunk_to_the_actions_that_it_needs(tmp_path: Path) -> None:
    (finding,) = run(Checker(WRONG), folder=tmp_path).findings
    assert set(finding.question.actions) == WRONG
    assert finding.question.workers == 1


def test_a_campaign_that_was_killed_resumes_with_the_same_findings(tmp_path: Path) -> None:
    whole = run(Checker(WRONG), folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(Checker(WRONG, dies_after=9), folder=tmp_path / "killed")
    resumed = run(Checker(WRONG), folder=tmp_path / "killed")
    assert resumed.findings == whole.findings
    assert [step.label for step in resumed.steps] == [step.label for step in whole.steps]


def test_a_finding_is_a_file_that_replays(tmp_path: Path) -> None:
    (finding,) = run(Checker(WRONG), folder=tmp_path).findings
    read = load(tmp_path / finding.name)
    assert read == finding
    assert hunter(Checker(WRONG)).replay(read)[0] == "STILL FAILS"
    assert hunter(Checker(set())).replay(read)[0] == "FIXED"


@pytest.mark.parametrize(
    "change",
    [{"question": {"actions": ["rm"], "workers": 1}}, {"problem": {"kind": 1, "words": ""}}],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    (finding,) = run(Checker(WRONG), folder=tmp_path).findings
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**encode(finding), **change}))
    with pytest.raises(UsageError, match=r"wrong\.json"):
        load(path)


def test_the_same_seed_draws_the_same_stories_with_every_end() -> None:
    first = drawn(stories(), 60, 1)
    drawn.cache_clear()
    assert first == drawn(stories(), 60, 1) != drawn(stories(), 60, 2)
    assert {action for story in first for action in story.actions} == {*Action}


def test_a_story_is_reduced_in_one_pass_and_a_proof() -> None:
    long = Story((Action.ASK, Action.LOAD, Action.STREAM, Action.RESET, Action.TERM), 2)
    tried: list[Story] = []
    problem = Problem("something left")

    def look(stories: Sequence[Story]) -> list[list[tuple[Story, Problem]]]:
        tried.extend(stories)
        return [[(story, problem)] if set(story.actions) >= WRONG else [] for story in stories]

    smallest, _ = reduce(long, problem, smaller_stories, look, Effort(100))
    assert smallest == Story((Action.LOAD, Action.TERM))
    assert len(tried) <= len(long.actions) + 4
