"""What the drop-ins of one process share: the variables that tests have set."""

from __future__ import annotations

import os
import threading

import pytest

from pytest_vllm_regress.errors import BuildError
from pytest_vllm_regress.surveys.upstream import settings


class _Engines:
    """Stand-in for the shared engines, whose ``warm`` waits for ``go_on`` and then fails."""

    def __init__(self) -> None:
        self.go_on, self.warmed = threading.Event(), False

    def warm(self) -> None:
        self.go_on.wait()
        self.warmed = True
        raise BuildError("no such interpreter")


def test_a_server_gets_what_tests_have_set_and_nothing_of_the_runner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "_INHERITED", dict(os.environ))
    assert settings.changed_variables(dict(os.environ)) == {}
    monkeypatch.setenv("VLLM_USE_V1", "0")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "one")
    monkeypatch.setenv("PYTHONPATH", "/x")
    assert settings.changed_variables({}) == {"VLLM_USE_V1": "0"}
    assert settings.changed_variables({**os.environ, "VLLM_USE_V1": "1"}) == {"VLLM_USE_V1": "1"}
    assert settings.changed_variables({"PYTHONPATH": "/y"}) == {
        "VLLM_USE_V1": "0",
        "PYTHONPATH": "/y",
    }


def test_the_first_engine_waits_for_the_import_that_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = _Engines()
    monkeypatch.setattr(settings, "_shared", lambda: shared)
    monkeypatch.setattr(settings, "_warming", None)
    settings.begin_warming()
    assert not shared.warmed, "the import runs beside the caller"
    threading.Timer(0.05, shared.go_on.set).start()
    returned: object = (
        settings.engines()
    )  # the failure of the import is for the first engine to report
    assert returned is shared
    assert shared.warmed
