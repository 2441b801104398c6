"""A campaign finds planted differences and shrinks them, finds nothing where both sides are equal,
and resumes after it was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.engines.campaign import CampaignPlan, EngineCampaign
from pytest_vllm_regress.fuzz.engines.finding import load, replay
from pytest_vllm_regress.fuzz.stepped import JOURNAL
from tests.unit.fuzz.engines.stand_in import Fault, StandIn, forgets_stop_with_seed, loses_results

PLAN = CampaignPlan(seed=5, pairs=("batch", "stream", "tensor-parallel"), examples=60)


def run(
    checker: StandIn, folder: Path, plan: CampaignPlan = PLAN, *others: StandIn
) -> EngineCampaign:
    folder.mkdir(exist_ok=True)
    campaign = EngineCampaign([checker, *others], plan, folder, lambda line: None)  # type: ignore[list-item]
    campaign.run()
    return campaign


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> EngineCampaign:
    """A campaign from beginning to end, in a folder of its own, that has found lost results."""
    return run(StandIn(loses_results), tmp_path_factory.mktemp("whole"))


def test_nothing_is_found_between_equal_sides(tmp_path: Path) -> None:
    campaign = run(StandIn(), tmp_path)
    assert campaign.findings == []
    assert [step["asked"] > 30 for step in campaign.steps] == [True, True, False]


def test_a_pair_that_the_release_does_not_have_is_reported(tmp_path: Path) -> None:
    assert run(StandIn(), tmp_path).missing == {"tensor-parallel": "there is no TPU"}


@pytest.mark.parametrize(
    ("fault", "kind", "traits"),
    [
        (loses_results, "number of results", {"n"}),
        (forgets_stop_with_seed, "text", {"stop", "seed"}),
    ],
)
def test_a_planted_difference_is_found_and_shrunk(
    tmp_path: Path, fault: Fault, kind: str, traits: set[str]
) -> None:
    findings = [
        finding for finding in run(StandIn(fault), tmp_path).findings if finding.pair == "batch"
    ]
    assert {finding.difference.kind for finding in findings} == {kind}
    smallest = min(findings, key=lambda finding: len(finding.question.to_text()))
    (request,) = smallest.question.requests
    assert traits <= request.traits <= traits | {"max_tokens", "temperature", "seed", "script"}


def test_a_campaign_that_was_killed_resumes_with_the_same_findings(
    whole: EngineCampaign, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(StandIn(loses_results, dies_after=whole.checker.questions - 20), tmp_path / "killed")  # type: ignore[attr-defined]
    resumed = run(StandIn(loses_results), tmp_path / "killed")
    assert [finding.to_json() for finding in resumed.findings] == [
        finding.to_json() for finding in whole.findings
    ]


def test_several_engines_at_a_time_find_the_same(whole: EngineCampaign, tmp_path: Path) -> None:
    others = [StandIn(loses_results), StandIn(loses_results)]
    together = run(StandIn(loses_results), tmp_path / "together", PLAN, *others)
    assert [finding.to_json() for finding in together.findings] == [
        finding.to_json() for finding in whole.findings
    ]
    assert [other.questions > 20 for other in others] == [True, True]


def test_finished_steps_are_not_run_again(tmp_path: Path) -> None:
    run(StandIn(), tmp_path)
    journal = (tmp_path / JOURNAL).read_text()
    run(StandIn(dies_after=0), tmp_path)
    assert (tmp_path / JOURNAL).read_text() == journal


def test_the_journal_of_another_campaign_is_refused(tmp_path: Path) -> None:
    run(StandIn(), tmp_path)
    with pytest.raises(UsageError, match="another campaign"):
        run(StandIn(), tmp_path, CampaignPlan(seed=6, pairs=PLAN.pairs, examples=60))


def test_an_unknown_pair_is_refused_with_all_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'nonsense': allowed are script, batch"):
        run(StandIn(), tmp_path, CampaignPlan(pairs=("nonsense",)))
    with pytest.raises(UsageError, match="--against"):
        run(StandIn(), tmp_path, CampaignPlan(pairs=("release",)))


def test_a_finding_is_a_file_that_replays(whole: EngineCampaign) -> None:
    for finding in whole.findings:
        read = load(whole.folder / finding.name)
        assert read == finding
        assert replay(read, StandIn(loses_results))[0] == "STILL FAILS"  # type: ignore[arg-type]
        assert replay(read, StandIn())[0] == "FIXED"  # type: ignore[arg-type]


def test_a_finding_whose_pair_is_not_there_cannot_run(
    whole: EngineCampaign, tmp_path: Path
) -> None:
    document = {**whole.findings[0].to_json(), "pair": "tensor-parallel"}
    path = tmp_path / "other.json"
    path.write_text(json.dumps(document))
    assert replay(load(path), StandIn()) == ("CANNOT RUN", "there is no TPU")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"pair": "../x"}, {"question": []}, {"difference": {"kind": 1, "words": ""}}]
)
def test_a_file_of_another_form_is_refused(
    whole: EngineCampaign, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**whole.findings[0].to_json(), **change}))
    with pytest.raises(UsageError, match=r"wrong\.json"):
        load(path)
