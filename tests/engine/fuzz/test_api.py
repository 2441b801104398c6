"""The search finds documented failures of servers again, without being told, and the published
findings still fail where they were found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.fuzz.api.api_hunter import ApiHunter
from pytest_vllm_regress.fuzz.api.servers import LIMITS
from pytest_vllm_regress.fuzz.campaign import Campaign
from pytest_vllm_regress.fuzz.hunter import CampaignPlan, load
from tests.helpers import ROOT
from tests.helpers.environments import require_environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]
PUBLISHED = sorted((ROOT / "docs" / "api-findings").glob("*.json"))
PLANS = {
    "vllm-0.11.2": ("/v1/completions", CampaignPlan(seed=1, rounds=2, examples=250)),
    "vllm-0.33.0": ("/server_info", CampaignPlan(seed=1, rounds=1, examples=20)),
}
Causes = Callable[[str], set[str]]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with bare_session(limits=LIMITS) as session:
        yield session


@pytest.fixture(scope="module")
def causes(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Causes:
    """Return the causes that the campaign against an environment finds; each campaign runs once."""

    @functools.cache
    def run(environment: str) -> set[str]:
        route, plan = PLANS[environment]
        hunter = ApiHunter.of([session], environment, servers=("text",), routes=(route,))
        folder = tmp_path_factory.mktemp(environment)
        campaign = Campaign(hunter, plan, folder, lambda line: None)
        with hunter.lanes:
            campaign.run()
        return {finding.problem.key for finding in campaign.findings}

    return run


@pytest.mark.parametrize(
    ("report", "environment", "cause"),
    [
        (
            "vllm-49144",
            "vllm-0.11.2",
            "TypeError in vllm/entrypoints/openai/protocol.py:check_logprobs",
        ),
        (
            "vllm-51654",
            "vllm-0.11.2",
            "AttributeError in vllm/entrypoints/openai/protocol.py:check_cache_salt_support",
        ),
        ("vllm-51795", "vllm-0.11.2", "TypeError in vllm/v1/engine/detokenizer.py:_protected_step"),
        (
            "vllm-project/vllm#44537",
            "vllm-0.11.2",
            "AttributeError in vllm/entrypoints/openai/protocol.py:<genexpr>",
        ),
        (
            "vllm-project/vllm#52039",
            "vllm-0.33.0",
            "AttributeError in vllm/collect_env.py:run_with_pip",
        ),
    ],
)
def test_a_documented_failure_is_found_again(
    causes: Causes, report: str, environment: str, cause: str
) -> None:
    require_environment(environment)
    assert cause in causes(environment), report


def test_the_published_findings_still_fail(session: Session) -> None:
    require_environment("vllm-0.33.0")
    hunter = ApiHunter.of([session], "vllm-0.33.0")
    with hunter.lanes:
        answers = {path.name: hunter.replay(load(path))[0] for path in PUBLISHED}
    assert answers == dict.fromkeys(answers, "STILL FAILS")
    assert answers
