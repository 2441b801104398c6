"""What the drop-ins of one process share: the variables that tests have set."""

from __future__ import annotations

import os

import pytest

from pytest_vllm_regress.upstream import settings


def test_a_server_gets_what_tests_have_set_and_nothing_of_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_INHERITED", dict(os.environ))
    assert settings.changed_variables(dict(os.environ)) == {}
    monkeypatch.setenv("VLLM_USE_V1", "0")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "one")
    monkeypatch.setenv("PYTHONPATH", "/x")
    assert settings.changed_variables({}) == {"VLLM_USE_V1": "0"}
    assert settings.changed_variables({**os.environ, "VLLM_USE_V1": "1"}) == {"VLLM_USE_V1": "1"}
    assert settings.changed_variables({"PYTHONPATH": "/y"}) == {"VLLM_USE_V1": "0", "PYTHONPATH": "/y"}
