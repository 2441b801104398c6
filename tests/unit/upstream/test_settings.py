"""What the drop-ins of one process share: variables that tests have set, the time that a start may take, dossiers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_vllm_regress.upstream import settings


def test_a_server_gets_what_tests_have_set_and_nothing_of_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "0")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "one")
    monkeypatch.setenv("PYTHONPATH", "/x")
    assert settings.changed_variables({}) == {"VLLM_USE_V1": "0"}
    assert settings.changed_variables({**os.environ, "VLLM_USE_V1": "1"}) == {"VLLM_USE_V1": "1"}
    assert settings.changed_variables({"PYTHONPATH": "/y"}) == {"VLLM_USE_V1": "0", "PYTHONPATH": "/y"}
    monkeypatch.undo()
    assert settings.changed_variables(dict(os.environ)) == {}


def test_a_start_ends_before_its_test_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_test_ends", settings._test_ends)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    assert settings.start_limit(None) == settings.START_S
    settings.begin_test(60.0)
    assert settings.start_limit(None) == settings.start_limit(500) == 60.0 - settings._DOSSIER_S
    assert settings.start_limit(10) == 10
    settings.begin_test(5.0)
    assert settings.start_limit(10) == 1.0


def test_dossiers_are_files_of_their_own_named_after_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.DOSSIERS, raising=False)
    assert settings.save_dossier("text") is None
    monkeypatch.setenv(settings.DOSSIERS, str(tmp_path / "dossiers"))
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/a/test_x.py::test_y[--flag/../../z] (setup)")
    paths = [settings.save_dossier(text) for text in ("first", "second")]
    assert len(set(paths)) == 2
    for path, text in zip(paths, ("first\n", "second\n"), strict=True):
        assert path is not None and path.parent == tmp_path / "dossiers" and path.read_text() == text
        assert path.name.startswith("tests-a-test_x.py-test_y-flag-..-..-z-") and path.suffix == ".txt"
