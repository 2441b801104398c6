"""The session of a pytest run, created on first use, and deadlines that end before the test's own
timeout (pytest-timeout) does.

Each worker of pytest-xdist has a session and agents of its own. On sim and cpu these are forked from
an import of vLLM below the controller (``engines/processes/shared_agents.py``). The processes of a
worker are found by the tag in their environment and below its agents.
"""

from __future__ import annotations

import contextlib
import os
import time

import pytest

from ..cases.collection import parameters
from ..engines.gpus.visible import usable
from ..engines.processes.early_exit import EarlyExitPolicy
from ..engines.session import Session
from ..errors import RegressError
from ..util.deadline import Deadline, DeadlineFor, check_seconds
from ..util.masking import mask
from ..util.signals import end_with_parent
from ..util.text import one_line, printable
from .reporter import register
from .state import (
    SESSION,
    controller_of,
    leg_of,
    outer_timeout,
    renew_timeout,
    settings_of,
    shared_agents_of,
)

# Our deadlines pass this many seconds before pytest-timeout's: enough for writing the dossier and
# ending the processes.
_MARGIN_S = 12.0


def session_of(config: pytest.Config) -> Session:
    """Return the session of this pytest run."""
    if SESSION not in config.stash:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        capture = config.pluginmanager.get_plugin("capturemanager")

        def progress(line: str) -> None:
            if terminal is not None and config.get_verbosity() >= 0:
                with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                    terminal.write_line(printable(mask(f"vllm-regress: {line}")))

        controller = controller_of(config)
        if controller is not None and controller.pid == os.getppid():
            # execnet notices late that the controller has ended; until then the tests' processes
            # would survive.
            end_with_parent(controller.pid)
        config.stash[SESSION] = Session(
            settings_of(config),
            deadline_for(config),
            progress,
            controller=controller,
            early_exit=lambda: _current_early_exit(config),
            on_waited=lambda: restart_timeout(config),
            shared_agents=shared_agents_of(config),
        )
        register(config)  # a test may ask for our fixtures only while it runs
    return config.stash[SESSION]


def environment_of(item: pytest.Item) -> str:
    """Return the name of the environment that a test runs in."""
    return str(parameters(item).get("vllm_env") or session_of(item.config).environment_names()[0])


def header(config: pytest.Config) -> list[str]:
    """Return a line for each environment, with versions and device, and one more if workers have to
    share GPUs.

    Builds nothing and starts no interpreter.
    """
    settings = settings_of(config)
    session = session_of(config)
    try:
        lines = [
            f"vllm-regress: {one_line(session.preview(name))}"
            for name in session.environment_names()
        ]
        return lines + (_shared_gpus(config) if settings.device == "gpu" else [])
    except RegressError as error:
        if config.getoption("collectonly") and not settings.environments:
            # collecting needs no environment
            return [f"vllm-regress: {one_line(mask(str(error)))}"]
        raise pytest.UsageError(str(error)) from None


def _shared_gpus(config: pytest.Config) -> list[str]:
    """Return a line if pytest-xdist has more workers than may use the GPUs, because each worker is a
    run of its own."""
    workers, gpus = config.getoption("numprocesses", None) or 0, len(usable().gpus)
    if workers <= gpus * settings_of(config).gpu_runs:
        return []
    return [f"vllm-regress: {workers} workers take turns on {gpus} GPU{'s' * (gpus != 1)}"]


def deadline_for(config: pytest.Config) -> DeadlineFor:
    """How long may a phase take? Return a function that makes its deadline: ``--vllm-timeout`` or
    its ini twin, for start and ready ``vllm_engine(timeout=...)``, or the time left before
    pytest-timeout's, if that is less. Defaults: ``defaults.py``; the first start on a GPU:
    ``engines/session.py``."""

    def make(phase: str, override_s: float | None) -> Deadline:
        check_seconds(override_s)
        allowed = override_s if override_s is not None else settings_of(config).timeouts.of(phase)
        item = current_item(config)
        if item is not None and (outer := outer_timeout(item)):
            spent = time.monotonic() - leg_of(item).protocol_started
            allowed = min(allowed, max(1.0, outer - spent - min(_MARGIN_S, outer / 2)))
        return Deadline.after(phase, allowed)

    return make


_CURRENT: pytest.StashKey[pytest.Item | None] = pytest.StashKey()


def set_current_item(item: pytest.Item | None, config: pytest.Config) -> None:
    """Remember which test is running."""
    config.stash[_CURRENT] = item


def current_item(config: pytest.Config) -> pytest.Item | None:
    """Return the running test, if any."""
    return config.stash.get(_CURRENT, None)


def early_exit_of(item: pytest.Item) -> EarlyExitPolicy:
    """Return what may end a wait of the running leg before its deadline."""
    return leg_of(item).early_exit or session_of(item.config).default_early_exit()


def _current_early_exit(config: pytest.Config) -> EarlyExitPolicy:
    item = current_item(config)
    return session_of(config).default_early_exit() if item is None else early_exit_of(item)


def restart_timeout(config: pytest.Config) -> None:
    """Give the running test its time again after it waited for other runs.

    Otherwise its start would miss the deadline and look like a hang.
    """
    item = current_item(config)
    if item is not None:
        leg_of(item).protocol_started = time.monotonic()
        renew_timeout(item)
