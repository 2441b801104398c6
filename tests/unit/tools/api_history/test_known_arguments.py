"""What the target interpreter knows of arguments and features agrees with the history."""

from __future__ import annotations

import json

from pytest_vllm_regress.answers.api_history.store import history
from pytest_vllm_regress.target_site.vllm_regress_target.dialect.known import FILE
from tests.unit.answers.api_history.releases import history_of
from tools.api_history.known_arguments import known, text

ARGUMENTS = {
    "engine/arg_utils.py": "class EngineArgs:\n    seed: int = 0\nparser.add_argument('--api-key')"
}


def test_the_shipped_file_is_derived_from_the_history() -> None:
    content = FILE.read_text()
    assert text(known(history(), json.loads(content))) == content


def test_entries_of_releases_before_the_history_stay() -> None:
    releases = {"0.7": {**ARGUMENTS, "v1/engine/core.py": ""}, "0.8": {"v1/engine/core.py": ""}}
    before = {
        "versions": ["0.5", "0.7"],
        "arguments": {
            "seed": ["0.5", "0.9"],
            "gone": ["0.5", "0.6"],
            "api_key": ["0.7.3", "0.7.3"],
        },
        "features": {"unseen": ["0.7", "0.8"], "the V1 engine": ["0.7.3", "0.7.3"]},
    }
    assert known(history_of(releases), before) == {
        "versions": ["0.5", "0.7", "0.8"],
        "arguments": {"api_key": ["0.7", "0.7"], "gone": ["0.5", "0.6"], "seed": ["0.5", "0.7"]},
        "features": {"the V1 engine": ["0.7", "0.8"], "unseen": ["0.7", "0.8"]},
    }
