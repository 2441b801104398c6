"""Which variables of the user reach a target, and which of them a result records."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.engines.processes.agent import Agent, recorded_variables

VARIABLES = {
    "PYTHONOPTIMIZE": "1",
    "PYTHONWARNINGS": "error",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_CONFIG_PATH": "/nowhere.json",
    "VLLM_USE_V1": "0",
    "VLLM_REGRESS_CACHE": "/cache",
    "HF_TOKEN": "hf_" + "a1B2" * 9,
    "EDITOR": "vi",
}


@pytest.mark.parametrize(("level", "used"), [("ERROR", "INFO"), ("DEBUG", "DEBUG")])
def test_what_would_turn_a_verdict_round_does_not_reach_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, used: str
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    run: Any = SimpleNamespace(path=tmp_path, logs=tmp_path, tag="tag")
    inherited = {**VARIABLES, "VLLM_LOGGING_LEVEL": level}
    environment = Agent(Path("python"), run, inherited=inherited).child_environment()
    assert "PYTHONOPTIMIZE" not in environment and "PYTHONWARNINGS" not in environment
    assert "VLLM_LOGGING_CONFIG_PATH" not in environment
    assert environment["VLLM_LOGGING_LEVEL"] == used
    assert environment["VLLM_USE_V1"] == "0"


def test_the_rest_is_part_of_a_result() -> None:
    assert recorded_variables(VARIABLES) == {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_USE_V1": "0"}
