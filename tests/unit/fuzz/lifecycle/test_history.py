"""A server that is right has no problem in any story, and each planted fault is one."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.fuzz.drawing import drawn
from pytest_vllm_regress.fuzz.lifecycle import story_run, streams
from pytest_vllm_regress.fuzz.lifecycle.story_hunter import Action, Story, stories
from pytest_vllm_regress.fuzz.lifecycle.story_run import StoryRun
from tests.unit.fuzz.lifecycle.stand_in import StandIn


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WATCH_S", "LEAVE_S"):
        monkeypatch.setattr(story_run, name, 0.3)
    for name in ("SETTLE_S", "QUIET_S"):
        monkeypatch.setattr(streams, name, 0.02)


def kinds(story: Story, *faults: str) -> set[str]:
    return {problem.kind for problem in StoryRun(StandIn(*faults)).run(story.actions)}  # type: ignore[arg-type]


@pytest.mark.parametrize("faults", [(), ("it cannot pause",)])
def test_a_server_that_is_right_has_no_problem_in_any_story(faults: tuple[str, ...]) -> None:
    assert {
        story.to_text(): found
        for story in drawn(stories(), 60, 3)
        if (found := kinds(story, *faults))
    } == {}


@pytest.mark.parametrize(
    ("fault", "actions", "kind"),
    [
        ("health lies", (Action.STOP,), "/health says 200 while the core is stopped"),
        ("health lies", (Action.KILL_CORE,), "/health says 200 after the core was killed"),
        ("health lies", (Action.KILL_WORKER,), "/health says 200 after a worker was killed"),
        ("streams are cut", (Action.STREAM, Action.TERM), "a stream is cut at SIGTERM"),
        ("streams are cut", (Action.STREAM,), "a stream is not complete: cut"),
        ("texts are exchanged", (Action.STREAM,), "a stream has another text than its own"),
        ("adapters stay", (Action.LOAD, Action.UNLOAD), "an unloaded adapter is not unknown"),
        ("requests stay counted", (Action.ASK,), "metrics count requests that have ended"),
        ("requests are kept", (Action.ASK,), "requests are kept that have ended"),
        ("requests run during a rest", (Action.SLEEP,), "requests run while the engine sleeps"),
        (
            "requests run during a rest",
            (Action.STREAM, Action.SLEEP_BUSY),
            "requests run while the engine sleeps",
        ),
        (
            "requests run during a rest",
            (Action.SLEEP, Action.WAKE_WEIGHTS),
            "requests run while the KV cache is asleep",
        ),
        (
            "requests run during a rest",
            (Action.PAUSE_KEEP,),
            "requests run while generation is paused",
        ),
        (
            "it counts as paused",
            (Action.PAUSE, Action.RESUME),
            "/is_paused says true while the engine is awake and not paused",
        ),
        (
            "the cache stays",
            (Action.REPEAT, Action.RESET, Action.REPEAT),
            "cached tokens after a reset",
        ),
        (
            "weights are not told apart",
            (Action.LOAD, Action.REPEAT, Action.REPLACE, Action.REPEAT),
            "cached tokens of other weights",
        ),
        ("answers are not counted", (Action.ASK,), "metrics count fewer answers than there were"),
    ],
)
def test_a_planted_fault_is_a_problem(fault: str, actions: tuple[Action, ...], kind: str) -> None:
    assert kind in kinds(Story(actions), fault)
    assert kinds(Story(actions)) == set()


def test_what_is_not_possible_does_nothing() -> None:
    assert kinds(Story((Action.WAKE, Action.UNLOAD, Action.ABORT, Action.CONTINUE))) == set()
