"""The published findings about engines still fail where they were found."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.fuzz.engines.pair_hunter import PairHunter
from pytest_vllm_regress.fuzz.hunter import load
from tests.helpers import ROOT
from tests.helpers.environments import require_environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]
PUBLISHED = sorted((ROOT / "docs" / "engine-findings").glob("engines-*.json"))


def test_the_published_findings_still_fail() -> None:
    require_environment("vllm-0.33.0")
    with bare_session(max_engines=4) as session:
        hunter = PairHunter.of([session], "vllm-0.33.0")
        answers = {path.name: hunter.replay(load(path))[0] for path in PUBLISHED}
    assert answers == dict.fromkeys(answers, "STILL FAILS")
    assert answers
