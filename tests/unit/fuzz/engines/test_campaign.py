"""A campaign finds planted differences and shrinks them, finds nothing where both sides are equal,
and resumes after it was killed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.campaign import JOURNAL, Campaign
from pytest_vllm_regress.fuzz.drawing import identity
from pytest_vllm_regress.fuzz.engines.pair_hunter import EngineFinding, PairHunter
from pytest_vllm_regress.fuzz.finding import ReplayAnswer
from pytest_vllm_regress.fuzz.hunter import CampaignPlan, load
from pytest_vllm_regress.util import codec
from tests.unit.fuzz.engines.stand_in import Fault, StandIn, forgets_stop_with_seed, loses_results

PLAN = CampaignPlan(seed=5, examples=60)
PAIRS = ("batch", "stream", "tensor-parallel")
PairCampaign = Campaign[Any, Any, EngineFinding]


def hunter(*checkers: StandIn, pairs: Sequence[str] = PAIRS) -> PairHunter:
    versions = {"vllm": "0.33.0", "torch": "2.13"}
    return PairHunter(checkers, "vllm-0.33.0", versions, pairs)  # type: ignore[arg-type]


def run(
    checker: StandIn,
    folder: Path,
    *others: StandIn,
    plan: CampaignPlan = PLAN,
    pairs: Sequence[str] = PAIRS,
) -> PairCampaign:
    tested = hunter(checker, *others, pairs=pairs)
    campaign = Campaign(tested, plan, folder, lambda line: None)
    with tested.lanes:
        campaign.run()
    return campaign


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> PairCampaign:
    """A campaign from beginning to end, in a folder of its own, that has found lost results."""
    return run(StandIn(loses_results), tmp_path_factory.mktemp("whole"))


def test_nothing_is_found_between_equal_sides(tmp_path: Path) -> None:
    campaign = run(StandIn(), tmp_path)
    assert campaign.findings == []
    assert [step.asked > 30 for step in campaign.steps] == [True, True, False]


def test_a_pair_that_the_release_does_not_have_is_reported(tmp_path: Path) -> None:
    left_out = run(StandIn(), tmp_path).hunter.left_out
    assert left_out["tensor-parallel"] == "there is no TPU"
    assert "batch, truncate_prompt_tokens" in left_out


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
    assert {finding.problem.kind for finding in findings} == {kind}
    smallest = min(findings, key=lambda finding: len(identity(finding.question)))
    (request,) = smallest.question.requests
    assert traits <= request.traits <= traits | {"max_tokens", "temperature", "seed", "script"}


def test_a_campaign_that_was_killed_resumes_with_the_same_findings(
    whole: PairCampaign, tmp_path: Path
) -> None:
    dies_after = whole.hunter.lanes.first.questions - 20
    with pytest.raises(KeyboardInterrupt):
        run(StandIn(loses_results, dies_after=dies_after), tmp_path / "killed")
    resumed = run(StandIn(loses_results), tmp_path / "killed")
    assert resumed.findings == whole.findings


def test_several_engines_at_a_time_find_the_same(whole: PairCampaign, tmp_path: Path) -> None:
    others = [StandIn(loses_results), StandIn(loses_results)]
    together = run(StandIn(loses_results), tmp_path / "together", *others)
    assert together.findings == whole.findings
    assert [other.questions > 20 for other in others] == [True, True]


def test_finished_steps_are_not_run_again(tmp_path: Path) -> None:
    run(StandIn(), tmp_path)
    journal = (tmp_path / JOURNAL).read_text()
    run(StandIn(dies_after=0), tmp_path)
    assert (tmp_path / JOURNAL).read_text() == journal


def test_the_journal_of_another_campaign_is_refused(tmp_path: Path) -> None:
    run(StandIn(), tmp_path)
    with pytest.raises(UsageError, match="for something else"):
        run(StandIn(), tmp_path, plan=CampaignPlan(seed=6, examples=60))


def test_an_unknown_pair_is_refused_with_all_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'nonsense': allowed are script, batch"):
        run(StandIn(), tmp_path, pairs=("nonsense",))
    with pytest.raises(UsageError, match="second --env"):
        run(StandIn(), tmp_path, pairs=("release",))


def test_a_finding_is_a_file_that_replays(whole: PairCampaign) -> None:
    for finding in whole.findings:
        read = load(whole.folder / finding.name)
        assert read == finding
        assert hunter(StandIn(loses_results)).replay(read)[0] == "STILL FAILS"
        assert hunter(StandIn()).replay(read)[0] == "FIXED"


def test_a_finding_whose_pair_is_not_there_cannot_run(whole: PairCampaign, tmp_path: Path) -> None:
    path = codec.replace(whole.findings[0], pair="tensor-parallel").save(tmp_path)
    answer = hunter(StandIn()).replay(load(path))
    assert answer == (ReplayAnswer.CANNOT_RUN, "there is no TPU")


@pytest.mark.parametrize(
    "change", [{"pair": "../x"}, {"question": {"turns": []}}, {"problem": {"kind": 1, "words": ""}}]
)
def test_a_file_of_another_form_is_refused(
    whole: PairCampaign, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**codec.encode(whole.findings[0]), **change}))
    with pytest.raises(UsageError, match=r"wrong\.json"):
        load(path)
