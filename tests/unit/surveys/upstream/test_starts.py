"""The start of a server in a test: its limit, its error and its dossier."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.errors import ChildDied, ChildError, DeadlineExceeded, RemoteError
from pytest_vllm_regress.surveys.upstream import settings


def test_a_start_ends_before_its_test_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_test_ends", settings._test_ends)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    assert settings.start_limit(None) == settings.START_S
    settings.begin_test(60.0)
    assert settings.start_limit(None) == settings.start_limit(500) == 60.0 - settings._DOSSIER_S
    assert settings.start_limit(10) == 10
    settings.begin_test(5.0)
    assert settings.start_limit(10) == 1.0


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (
            ChildDied("server 1 died", phase="ready", detail="== dossier =="),
            "Server exited unexpectedly",
        ),
        (
            DeadlineExceeded("server 1 died", phase="ready", detail="== dossier =="),
            "Server failed to start in time",
        ),
        (RemoteError("server 1 died", phase="ready", detail="== dossier =="), "Server failed"),
    ],
)
def test_the_error_has_the_dossier_or_names_its_file(
    error: ChildError, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(settings.DOSSIERS, raising=False)
    assert str(settings.start_error(error)) == f"{how}.\n[ready] server 1 died\n== dossier =="
    monkeypatch.setenv(settings.DOSSIERS, str(tmp_path / "dossiers"))
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/a/test_x.py::test_y[--flag/../../z] (setup)")
    errors = [str(settings.start_error(error)) for _ in range(2)]
    files = sorted((tmp_path / "dossiers").iterdir())
    assert sorted(errors) == [f"{how}: server 1 died; dossier: {file}" for file in files]
    assert len(files) == 2
    for file in files:
        assert file.name.startswith("tests-a-test_x.py-test_y-flag-..-..-z-")
        assert "== dossier ==" in file.read_text()
