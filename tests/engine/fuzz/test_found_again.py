"""Documented failures that the hunters found without being told still fail where they were found."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cli import main
from tests.helpers import ROOT
from tests.helpers.environments import require_environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]
FILES = sorted((ROOT / "docs" / "records" / "found-again").glob("*.json"))


@pytest.mark.parametrize("environment", ["vllm-0.8.5", "vllm-0.11.2", "vllm-0.33.0"])
def test_what_was_found_again_still_fails(
    environment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    require_environment(environment)
    files = [path for path in FILES if f'"environment": "{environment}"' in path.read_text()]
    main(["fuzz", "replay", *map(str, files)])
    answers = {
        Path(line.partition(".json")[0].split()[-1]).name: line
        for line in capsys.readouterr().out.splitlines()
    }
    wrong = [
        line
        for line in answers.values()
        if not line.startswith("STILL FAILS") or "in another way" in line
    ]
    assert wrong == []
    assert len(answers) == len(files) > 0
