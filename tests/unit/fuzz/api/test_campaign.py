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
from pytest_vllm_regress.fuzz.api import request_drawing
from pytest_vllm_regress.fuzz.api.api_hunter import ApiFinding, ApiHunter
from pytest_vllm_regress.fuzz.api.api_oracle import ApiOutcome
from pytest_vllm_regress.fuzz.api.api_request import ApiReply, ApiRequest
from pytest_vllm_regress.fuzz.api.servers import ApiLane
from pytest_vllm_regress.fuzz.campaign import Campaign
from pytest_vllm_regress.fuzz.finding import ReplayAnswer
from pytest_vllm_regress.fuzz.hunter import CampaignPlan, load
from pytest_vllm_regress.util.codec import encode
from tests.unit.fuzz.api import stand_in
from tests.unit.fuzz.api.stand_in import Fault, StandInStarter

PLAN = CampaignPlan(seed=3, rounds=4, examples=150)
"""Enough to set each field to each value."""


@pytest.fixture(autouse=True)
def short_campaigns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemathesis takes a tenth of a second for a body."""
    monkeypatch.setattr(request_drawing, "DRAWN_SHARE", 100)
    plain = {"model": "m", "prompt": "Hi"}
    monkeypatch.setattr(
        request_drawing,
        "bases_of",
        lambda server, route: (plain, {**plain, "stream": True, "n": 1}),
    )


def hunter(*lanes: ApiLane, servers: Sequence[str] = ("text",), growth: int = 0) -> ApiHunter:
    return ApiHunter(lanes, "vllm-0.33.0", {"vllm": "0.33.0"}, servers=servers, growth=growth)


def run(
    folder: Path,
    starter: StandInStarter,
    plan: CampaignPlan = PLAN,
    jobs: int = 1,
    servers: Sequence[str] = ("text",),
    growth: int = 0,
) -> Campaign[Any, Any, ApiFinding]:
    tested = hunter(*(ApiLane(starter) for _ in range(jobs)), servers=servers, growth=growth)
    campaign = Campaign(tested, plan, folder, lambda line: None)
    with tested.lanes:
        campaign.run()
    return campaign


def replay(finding: ApiFinding, starter: StandInStarter) -> ReplayAnswer:
    return hunter(ApiLane(starter)).replay(finding)[0]


ONE_ROUND = dataclasses.replace(PLAN, rounds=1)


def test_memory_that_grows_with_every_request_is_a_finding(tmp_path: Path) -> None:
    (finding,) = run(
        tmp_path, StandInStarter(stand_in.keeps_every_request), ONE_ROUND, growth=200
    ).findings
    assert finding.problem.kind == ApiOutcome.MEMORY_GROWS
    assert "server: 1000 bytes per request (1000 to 1000)" in finding.problem.words
    again = load(tmp_path / finding.name)
    assert again == finding
    assert replay(again, StandInStarter(stand_in.keeps_every_request)) == "STILL FAILS"
    assert replay(again, StandInStarter()) == "FIXED"


@pytest.mark.parametrize("fault", [None, stand_in.fills_a_cache])
def test_memory_that_does_not_grow_any_more_is_no_finding(
    tmp_path: Path, fault: Fault | None
) -> None:
    campaign = run(tmp_path, StandInStarter(fault), ONE_ROUND, growth=200)
    assert campaign.findings == []
    assert [step.asked for step in campaign.steps if step.label.endswith("memory")] == [1, 2]


def test_nothing_is_reported_about_a_server_that_is_right(tmp_path: Path) -> None:
    starter = StandInStarter()
    campaign = run(tmp_path, starter)
    assert campaign.findings == []
    statuses = {name for step in campaign.steps for name in step.counts}
    assert statuses == {"2xx", "4xx"}
    assert len(starter.servers) == starter.stopped == 1


@pytest.mark.parametrize(
    ("fault", "outcome", "body"),
    [
        (
            stand_in.raises_for_a_huge_priority,
            ApiOutcome.SERVER_ERROR,
            {"model": "m", "priority": 2**63},
        ),
        (stand_in.says_nothing, ApiOutcome.SERVER_ERROR, {"model": "m", "n": []}),
        (stand_in.dies_of_a_list, ApiOutcome.ENGINE_DEAD, {"model": "m", "top_k": []}),
        (stand_in.is_stuck_by_a_list, ApiOutcome.ENGINE_STUCK, {"model": "m", "top_k": []}),
        (stand_in.takes_all_memory, ApiOutcome.OUT_OF_MEMORY, {"model": "m", "n": 2**31}),
        (stand_in.never_answers, ApiOutcome.NO_ANSWER, {"model": "m", "stream": "many"}),
        (
            stand_in.breaks_the_connection,
            ApiOutcome.CONNECTION_BROKEN,
            {"model": "m", "prompt": {}},
        ),
        (
            stand_in.keeps_a_stream,
            ApiOutcome.REQUESTS_KEPT,
            {"model": "m", "stream": True, "n": 2},
        ),
        (
            stand_in.forgets_the_end,
            ApiOutcome.NO_END_MARKER,
            {"model": "m", "stream": True, "n": 2},
        ),
        (
            stand_in.errs_in_the_stream,
            ApiOutcome.SERVER_ERROR,
            {"model": "m", "stream": True, "n": 2},
        ),
        (
            stand_in.invents_a_reason,
            ApiOutcome.REFUSED_BY_CLIENT,
            {"model": "m", "max_tokens": 0.5},
        ),
        (stand_in.answers_no_json, ApiOutcome.REFUSED_BY_CLIENT, {"model": "m", "n": None}),
    ],
)
def test_a_planted_fault_is_found_and_shrunk_to_the_least_request(
    tmp_path: Path, fault: Fault, outcome: ApiOutcome, body: dict[str, object]
) -> None:
    (finding,) = run(tmp_path, StandInStarter(fault)).findings
    assert finding.problem.kind == outcome
    assert finding.question.value() == body
    again = load(tmp_path / finding.name)
    assert again == finding
    assert replay(again, StandInStarter(fault)) == "STILL FAILS"
    assert replay(again, StandInStarter()) == "FIXED"


def test_a_finding_names_exception_and_function_of_its_cause(tmp_path: Path) -> None:
    (finding,) = run(tmp_path, StandInStarter(stand_in.raises_for_a_huge_priority)).findings
    assert finding.problem.key == "OverflowError in vllm/entrypoints/serving.py:create"
    assert (
        finding.problem.traceback
        == "vllm/entrypoints/serving.py:7 create\nOverflowError: int too big to convert"
    )


class Killed(ApiLane):
    """Is killed after some questions."""

    left = 250

    def ask(self, questions: Sequence[ApiRequest]) -> list[ApiReply]:
        self.left -= len(questions)
        if self.left < 0:
            raise KeyboardInterrupt
        return super().ask(questions)


def test_a_campaign_that_was_killed_resumes_with_the_same_findings(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", StandInStarter(stand_in.raises_for_a_huge_priority))
    killed = hunter(Killed(StandInStarter(stand_in.raises_for_a_huge_priority)))
    campaign = Campaign(killed, PLAN, tmp_path / "killed", lambda line: None)
    with pytest.raises(KeyboardInterrupt):
        campaign.run()
    assert 0 < len(campaign.steps) < len(whole.steps)
    resumed = run(tmp_path / "killed", StandInStarter(stand_in.raises_for_a_huge_priority))
    assert resumed.findings == whole.findings
    assert [step.label for step in resumed.steps] == [step.label for step in whole.steps]


def test_the_findings_do_not_depend_on_the_number_of_servers(tmp_path: Path) -> None:
    one = run(tmp_path / "one", StandInStarter(stand_in.forgets_the_end))
    starter = StandInStarter(stand_in.forgets_the_end)
    two = run(tmp_path / "two", starter, jobs=2)
    assert len(starter.servers) == starter.stopped == 2
    assert two.findings == one.findings


def test_the_same_seed_asks_the_same_questions_and_another_seed_others(tmp_path: Path) -> None:
    starters = [StandInStarter() for _ in range(3)]
    for number, (starter, seed) in enumerate(zip(starters, (3, 3, 4), strict=True)):
        run(
            tmp_path / str(number),
            starter,
            CampaignPlan(seed=seed, rounds=2, examples=60),
        )
    first, same, other = (list(starter.requests()) for starter in starters)
    assert first == same
    assert first != other


def test_routes_that_suspend_the_engine_are_not_asked(tmp_path: Path) -> None:
    campaign = run(tmp_path, StandInStarter(), CampaignPlan(rounds=1, examples=8))
    assert [step.label for step in campaign.steps] == [
        "text: GET /health",
        "text: POST /v1/completions",
    ]


def test_an_unknown_kind_of_server_is_refused_with_the_kinds_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'tts'.*text, vision, embed"):
        run(tmp_path, StandInStarter(), servers=("tts",))


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document of a finding: a server that says nothing."""
    (finding,) = run(
        tmp_path_factory.mktemp("silent"), StandInStarter(stand_in.says_nothing)
    ).findings
    document: dict[str, Any] = encode(finding)
    return document


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 1),
        ("surplus", 1),
        ("problem", {"kind": "never", "words": ""}),
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
    with pytest.raises(UsageError, match=r"question\.server = 'other': allowed: "):
        load(path)
