"""The tutorials that start vLLM, as a reader follows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.environments import require_environment
from tests.helpers.tutorials import follow

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("user_caches")]


def test_a_failure_is_red_and_green(tmp_path: Path) -> None:
    require_environment("vllm-0.8.4")
    require_environment("vllm-0.8.5")
    (run,) = follow("red-and-green.md", tmp_path)
    assert run.missing == []


def test_a_first_finding(tmp_path: Path) -> None:
    require_environment("vllm-0.8.5")
    require_environment("vllm-0.33.0")
    search, again, newest = follow("first-finding.md", tmp_path)
    found = [*(tmp_path / "parser-findings").glob("parser-*.json")]
    assert f"{len(found)} findings in parser-findings" in search.printed[-1]
    verdicts = [line.split()[0] for line in again.printed]
    assert verdicts.count("STILL") == len(found) > 0
    assert any(line.startswith("FIXED") for line in newest.printed)
