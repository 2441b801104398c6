"""The findings of a folder share the server that they are asked again on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cli import main
from pytest_vllm_regress.fuzz.api import api_hunter
from pytest_vllm_regress.fuzz.api.api_hunter import ApiFinding
from pytest_vllm_regress.fuzz.api.api_oracle import ApiOutcome
from pytest_vllm_regress.fuzz.api.api_request import ApiRequest
from pytest_vllm_regress.fuzz.finding import Problem
from tests.unit.fuzz.api import stand_in

ROUTE = "/v1/completions"
FAILS = '{"model": "m", "n": []}'
SOUND = '{"model": "m", "prompt": "a"}'


def save(folder: Path, body: str, cause: str) -> None:
    ApiFinding(
        environment="vllm-0.33.0",
        versions={"vllm": "0.33.0"},
        question=ApiRequest("text", "POST", ROUTE, ROUTE, body),
        problem=Problem(ApiOutcome.SERVER_ERROR, key=cause),
    ).save(folder)


def test_findings_of_a_folder_share_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    starter = stand_in.StandInStarter(stand_in.says_nothing)
    monkeypatch.setattr(api_hunter, "ServerStarter", lambda session, environment: starter)
    versions = {"vllm": "0.33.0"}
    monkeypatch.setattr(api_hunter, "versions_with_vllm", lambda session, environment: versions)
    for number in range(3):
        save(tmp_path, FAILS, f"HTTP 500 {number}")
    save(tmp_path, SOUND, "HTTP 500")
    assert main(["fuzz", "replay", str(tmp_path), "--env", "vllm-0.33.0"]) == 1
    answers = [line.partition("  ")[0].strip() for line in capsys.readouterr().out.splitlines()]
    assert sorted(answers) == ["FIXED", *["STILL FAILS"] * 3]
    assert len(starter.servers) == starter.stopped == 1
