"""A campaign reports nothing on a server that is right, finds each planted fault, resumes, and
gives the same findings for the same seed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.api.campaign import ApiCampaign, CampaignPlan
from pytest_vllm_regress.fuzz.api.checker import ApiChecker
from pytest_vllm_regress.fuzz.api.drawing import draw
from pytest_vllm_regress.fuzz.api.finding import load, replay
from pytest_vllm_regress.fuzz.api.oracle import Outcome
from pytest_vllm_regress.fuzz.api.question import Question
from pytest_vllm_regress.fuzz.api.reply import Reply
from tests.unit.fuzz.api import stand_in
from tests.unit.fuzz.api.stand_in import Fault, StandInStarter

PLAN = CampaignPlan(seed=3, servers=("text",), rounds=4, examples=150)
"""Enough to set each field to each value."""


@pytest.fixture(autouse=True)
def short_campaigns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemathesis takes a tenth of a second for a body."""
    monkeypatch.setattr(draw, "DRAWN_SHARE", 100)
    plain = {"model": "m", "prompt": "Hi"}
    monkeypatch.setattr(
        draw, "bases_of", lambda server, route: (plain, {**plain, "stream": True, "n": 1})
    )


def run(
    folder: Path, starter: StandInStarter, plan: CampaignPlan = PLAN, jobs: int = 1
) -> ApiCampaign:
    folder.mkdir(exist_ok=True)
    checker = ApiChecker(starter, jobs=jobs)
    campaign = ApiCampaign(checker, plan, folder, lambda line: None)
    try:
        campaign.run()
    finally:
        checker.close()
    return campaign


GROWTH = dataclasses.replace(PLAN, rounds=1, growth=200)


def test_memory_that_grows_with_every_request_is_a_finding(tmp_path: Path) -> None:
    (finding,) = run(tmp_path, StandInStarter(stand_in.keeps_every_request), GROWTH).findings
    assert finding.problem.outcome is Outcome.MEMORY_GROWS
    assert "server: 1000 bytes per request (1000 to 1000)" in finding.problem.words
    again = load(tmp_path / finding.name)
    assert again == finding
    assert (
        replay(again, ApiChecker(StandInStarter(stand_in.keeps_every_request)))[0] == "STILL FAILS"
    )
    assert replay(again, ApiChecker(StandInStarter()))[0] == "FIXED"


@pytest.mark.parametrize("fault", [None, stand_in.fills_a_cache])
def test_memory_that_does_not_grow_any_more_is_no_finding(
    tmp_path: Path, fault: Fault | None
) -> None:
    campaign = run(tmp_path, StandInStarter(fault), GROWTH)
    assert campaign.findings == []
    assert [step["asked"] for step in campaign.steps if step["label"].endswith("memory")] == [
        200,
        400,
    ]


def test_nothing_is_reported_about_a_server_that_is_right(tmp_path: Path) -> None:
    starter = StandInStarter()
    campaign = run(tmp_path, starter)
    assert campaign.findings == []
    statuses = {name for step in campaign.steps for name in step["statuses"]}
    assert statuses == {"2xx", "4xx"}
    assert len(starter.servers) == starter.stopped == 1


@pytest.mark.parametrize(
    ("fault", "outcome", "body"),
    [
        (
            stand_in.raises_for_a_huge_priority,
            Outcome.SERVER_ERROR,
            {"model": "m", "priority": 2**63},
        ),
        (stand_in.says_nothing, Outcome.SERVER_ERROR, {"model": "m", "n": []}),
        (stand_in.dies_of_a_list, Outcome.ENGINE_DEAD, {"model": "m", "top_k": []}),
        (stand_in.is_stuck_by_a_list, Outcome.ENGINE_STUCK, {"model": "m", "top_k": []}),
        (stand_in.takes_all_memory, Outcome.OUT_OF_MEMORY, {"model": "m", "n": 2**31}),
        (stand_in.never_answers, Outcome.NO_ANSWER, {"model": "m", "stream": "many"}),
        (stand_in.breaks_the_connection, Outcome.CONNECTION_BROKEN, {"model": "m", "prompt": {}}),
        (stand_in.forgets_the_end, Outcome.NO_END_MARKER, {"model": "m", "stream": True, "n": 2}),
        (stand_in.errs_in_the_stream, Outcome.SERVER_ERROR, {"model": "m", "stream": True, "n": 2}),
        (stand_in.invents_a_reason, Outcome.REFUSED_BY_CLIENT, {"model": "m", "max_tokens": 0.5}),
        (stand_in.answers_no_json, Outcome.REFUSED_BY_CLIENT, {"model": "m", "n": None}),
    ],
)
def test_a_planted_fault_is_found_and_shrunk_to_the_least_request(
    tmp_path: Path, fault: Fault, outcome: Outcome, body: dict[str, object]
) -> None:
    (finding,) = run(tmp_path, StandInStarter(fault)).findings
    assert finding.problem.outcome is outcome
    assert finding.question.value() == body
    again = load(tmp_path / finding.name)
    assert again == finding
    assert replay(again, ApiChecker(StandInStarter(fault)))[0] == "STILL FAILS"
    assert replay(again, ApiChecker(StandInStarter()))[0] == "FIXED"


def test_a_finding_names_exception_and_function_of_its_cause(tmp_path: Path) -> None:
    (finding,) = run(tmp_path, StandInStarter(stand_in.raises_for_a_huge_priority)).findings
    assert finding.problem.key == "OverflowError in vllm/entrypoints/serving.py:create"
    assert (
        finding.traceback
        == "vllm/entrypoints/serving.py:7 create\nOverflowError: int too big to convert"
    )


class Killed(ApiChecker):
    """Is killed after some questions."""

    left = 250

    def ask(self, questions: Sequence[Question]) -> list[Reply]:
        self.left -= len(questions)
        if self.left < 0:
            raise KeyboardInterrupt
        return super().ask(questions)


def test_a_campaign_that_was_killed_resumes_with_the_same_findings(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", StandInStarter(stand_in.raises_for_a_huge_priority))
    killed = tmp_path / "killed"
    killed.mkdir()
    with pytest.raises(KeyboardInterrupt):
        ApiCampaign(
            Killed(StandInStarter(stand_in.raises_for_a_huge_priority)),
            PLAN,
            killed,
            lambda line: None,
        ).run()
    assert 0 < len(json.loads((killed / "campaign.json").read_text())["steps"]) < len(whole.steps)
    resumed = run(killed, StandInStarter(stand_in.raises_for_a_huge_priority))
    assert [finding.to_json() for finding in resumed.findings] == [
        finding.to_json() for finding in whole.findings
    ]
    assert [step["label"] for step in resumed.steps] == [step["label"] for step in whole.steps]


def test_the_findings_do_not_depend_on_the_number_of_servers(tmp_path: Path) -> None:
    one = run(tmp_path / "one", StandInStarter(stand_in.forgets_the_end))
    starter = StandInStarter(stand_in.forgets_the_end)
    two = run(tmp_path / "two", starter, jobs=2)
    assert len(starter.servers) == starter.stopped == 2
    assert [finding.to_json() for finding in two.findings] == [
        finding.to_json() for finding in one.findings
    ]


def test_the_same_seed_asks_the_same_questions_and_another_seed_others(tmp_path: Path) -> None:
    starters = [StandInStarter() for _ in range(3)]
    for number, (starter, seed) in enumerate(zip(starters, (3, 3, 4), strict=True)):
        run(
            tmp_path / str(number),
            starter,
            CampaignPlan(seed=seed, servers=("text",), rounds=2, examples=60),
        )
    first, same, other = (list(starter.requests()) for starter in starters)
    assert first == same
    assert first != other


def test_the_budget_counts_over_resumptions(tmp_path: Path) -> None:
    plan = CampaignPlan(seed=3, servers=("text",), rounds=None, minutes=1)
    campaign = ApiCampaign(ApiChecker(StandInStarter()), plan, tmp_path, lambda line: None)
    (tmp_path / "campaign.json").write_text(
        json.dumps({"plan": campaign.key, "spent": 61, "steps": []})
    )
    assert run(tmp_path, StandInStarter(), plan).steps == []


def test_routes_that_suspend_the_engine_are_not_asked(tmp_path: Path) -> None:
    campaign = run(
        tmp_path, StandInStarter(), CampaignPlan(servers=("text",), rounds=1, examples=8)
    )
    assert [step["label"] for step in campaign.steps] == [
        "text: GET /health",
        "text: POST /v1/completions",
    ]


def test_an_unknown_kind_of_server_is_refused_with_the_kinds_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'tts'.*text, vision, embed"):
        run(tmp_path, StandInStarter(), CampaignPlan(servers=("tts",)))


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document of a finding: a server that says nothing."""
    (finding,) = run(
        tmp_path_factory.mktemp("silent"), StandInStarter(stand_in.says_nothing)
    ).findings
    return finding.to_json()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2),
        ("surplus", 1),
        ("api", {"server": "x"}),
        ("releases", {"1": "maybe"}),
        ("question", {"body": 1}),
    ],
)
def test_a_damaged_finding_is_refused_by_name(
    silent: dict[str, Any], tmp_path: Path, key: str, value: object
) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps({**silent, key: value}))
    with pytest.raises(UsageError, match=path.name):
        load(path)


def test_a_finding_about_an_unknown_server_is_refused(
    silent: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**silent, "question": {**silent["question"], "server": "other"}}))
    with pytest.raises(UsageError, match="'other' is not one of text"):
        load(path)
