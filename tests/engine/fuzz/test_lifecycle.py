"""The published findings about the life of a server still fail where they were found, and stories
of maintenance alone find nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.fuzz.hunter import load
from pytest_vllm_regress.fuzz.lifecycle.story_hunter import Action, Story, StoryHunter
from tests.helpers import ROOT
from tests.helpers.environments import require_environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]
PUBLISHED = sorted((ROOT / "docs" / "engine-findings").glob("lifecycle-*.json"))


@pytest.fixture(scope="module")
def hunter() -> Iterator[StoryHunter]:
    require_environment("vllm-0.33.0")
    with bare_session() as session:
        hunter = StoryHunter.of([session], "vllm-0.33.0")
        with hunter.lanes:
            yield hunter


def test_the_published_findings_still_fail(hunter: StoryHunter) -> None:
    answers = {path.name: hunter.replay(load(path))[0] for path in PUBLISHED}
    assert answers == dict.fromkeys(answers, "STILL FAILS")
    assert answers


@pytest.mark.parametrize(
    "actions",
    [
        (Action.STREAM, Action.PAUSE_KEEP, Action.RESUME),
        (Action.STREAM, Action.PAUSE, Action.SLEEP, Action.WAKE),
        (Action.SLEEP_BUSY, Action.WAKE_WEIGHTS, Action.WAKE),
        (Action.REPEAT, Action.SLEEP, Action.WAKE, Action.REPEAT, Action.RESET, Action.REPEAT),
    ],
    ids=lambda actions: ", ".join(actions),
)
def test_maintenance_leaves_a_server_as_it_was(
    hunter: StoryHunter, actions: tuple[Action, ...]
) -> None:
    assert hunter.lanes.first.run(Story(actions)) == []
