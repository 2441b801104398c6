"""The session of a pytest run, made on first use, and deadlines that end before pytest-timeout does."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import pytest

from ..engines.session import Session
from ..errors import RegressError
from ..util.deadline import Deadline, DeadlineFor
from ..util.masking import mask
from ..util.signals import end_with_parent
from ..util.text import one_line, printable
from .private import renew_timeout
from .reporter import register
from .stash import SESSION, controller_of, evidence_of, settings_of

# A deadline of ours passes this long before pytest-timeout's, so that the dossier is written and the family ended first.
_MARGIN_S = 12.0


def session_of(config: pytest.Config) -> Session:
    """The run's session."""
    if SESSION not in config.stash:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        capture = config.pluginmanager.get_plugin("capturemanager")

        def progress(line: str) -> None:
            if terminal is not None and config.get_verbosity() >= 0:
                with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                    terminal.write_line(printable(f"vllm-regress: {line}"))

        controller = controller_of(config)
        if controller is not None and controller.pid == os.getppid():
            end_with_parent(
                controller.pid
            )  # execnet notices late, and what runs for the tests would live on until then
        session = Session(settings_of(config), deadline_for(config), progress, controller=controller)
        session.on_waited = lambda: _begin_anew(config)
        config.stash[SESSION] = session
        register(config)  # a test may ask for our fixtures only while it runs
    return config.stash[SESSION]


def environment_of(item: pytest.Item) -> str:
    """The name of the environment that a test runs in."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return str(params.get("vllm_env") or session_of(item.config).environment_names()[0])


def header(config: pytest.Config) -> list[str]:
    """One line per environment: versions and device. Builds nothing and starts no interpreter."""
    from ..engines.target import preview

    settings = settings_of(config)
    session = session_of(config)
    try:
        return [f"vllm-regress: {one_line(preview(name, settings.device))}" for name in session.environment_names()]
    except RegressError as error:
        if config.getoption("collectonly") and not settings.environments:
            return [f"vllm-regress: {one_line(mask(str(error)))}"]  # collecting needs no environment
        if hasattr(config, "workerinput"):  # a worker that ends here ends without a word; each test reports it
            return []
        raise pytest.UsageError(str(error)) from None


def deadline_for(config: pytest.Config) -> DeadlineFor:
    """Makes the deadline of a phase: the phase's time-out, or what is left before pytest-timeout's, whichever is less."""

    def make(phase: str, override_s: float | None) -> Deadline:
        allowed = override_s if override_s is not None else settings_of(config).timeouts.of(phase)
        item = current_item(config)
        outer = outer_timeout(item) if item is not None else 0.0
        if item is not None and outer:
            spent = time.monotonic() - evidence_of(item).protocol_started
            allowed = min(allowed, max(1.0, outer - spent - min(_MARGIN_S, outer / 2)))
        return Deadline.after(phase, allowed)

    return make


_CURRENT: pytest.StashKey[pytest.Item | None] = pytest.StashKey()


def set_current_item(item: pytest.Item | None, config: pytest.Config) -> None:
    """Remember which test runs."""
    config.stash[_CURRENT] = item


def current_item(config: pytest.Config) -> pytest.Item | None:
    """The test that runs, if any."""
    return config.stash.get(_CURRENT, None)


def _begin_anew(config: pytest.Config) -> None:
    """Time that the test spent waiting for others is not its own: what comes now would miss a deadline, and look like a hang."""
    item = current_item(config)
    if item is not None:
        evidence_of(item).protocol_started = time.monotonic()
        renew_timeout(item)


def outer_timeout(item: pytest.Item) -> float:
    """Seconds pytest-timeout gives this test, 0 for none: marker over command line over environment over ini file."""
    marker = item.get_closest_marker("timeout")
    candidates: list[Any] = [
        marker.args[0] if marker and marker.args else marker.kwargs.get("timeout") if marker else None
    ]
    candidates += [item.config.getoption("timeout", None), os.environ.get("PYTEST_TIMEOUT")]
    with contextlib.suppress(ValueError, KeyError):
        candidates.append(item.config.getini("timeout"))
    for value in candidates:
        with contextlib.suppress(TypeError, ValueError):
            return float(value)
    return 0.0
