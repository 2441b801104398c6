"""The search finds documented failures of parsers again, without being told, and the published
findings still fail where they were found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.fuzz.campaign import Campaign
from pytest_vllm_regress.fuzz.hunter import CampaignPlan, load
from pytest_vllm_regress.fuzz.parsers.parser_hunter import ParserHunter
from tests.helpers import ROOT
from tests.helpers.environments import require_environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]
PUBLISHED = sorted((ROOT / "docs" / "parser-findings").glob("*.json"))


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with bare_session() as session:
        yield session


@pytest.mark.parametrize(
    ("case", "environment", "parser", "kind"),
    [
        ("vllm-18257", "vllm-0.33.0", "phi4_mini_json", "all calls lost"),
        ("vllm-48020", "vllm-0.33.0", "deepseek_v31", "all calls lost"),
        ("vllm-48342", "vllm-0.33.0", "deepseek_v3", "arguments cut off"),
        ("vllm-55082", "vllm-0.33.0", "step3", "arguments replaced by {}"),
        ("vllm-31501", "vllm-0.11.2", "hermes", "arguments lost"),
        ("vllm-19569", "vllm-0.11.2", "pythonic", "all calls lost"),
    ],
)
def test_a_documented_failure_is_found_again(
    session: Session, tmp_path: Path, case: str, environment: str, parser: str, kind: str
) -> None:
    require_environment(environment)
    hunter = ParserHunter.of([session], environment, names=(parser,))
    campaign = Campaign(hunter, CampaignPlan(examples=200), tmp_path, lambda line: None)
    with hunter.lanes:
        campaign.run()
    assert kind in {finding.problem.kind for finding in campaign.findings}, case


def test_the_published_findings_still_fail(session: Session) -> None:
    require_environment("vllm-0.33.0")
    hunter = ParserHunter.of([session], "vllm-0.33.0")
    with hunter.lanes:
        answers = {path.name: hunter.replay(load(path))[0] for path in PUBLISHED}
    assert answers == dict.fromkeys(answers, "STILL FAILS")
    assert answers
