"""The plugin's state on pytest's objects, which tests are ours, and the private names of pytest
that the plugin needs.

The names are tested with the oldest and newest supported pytest. When a new release drops one of
them, only this module must change.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from ..engines.session import Session
    from ..engines.settings import Settings
    from ..util.rundir import Owner
    from .leg import Leg

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
SESSION: pytest.StashKey[Session] = pytest.StashKey()
SHARED_AGENTS: pytest.StashKey[str] = pytest.StashKey()
LEG: pytest.StashKey[Leg] = pytest.StashKey()


def settings_of(config: pytest.Config) -> Settings:
    """Return the settings.

    They are resolved on first use, so that runs without our tests pay nothing.
    """
    if SETTINGS not in config.stash:
        from ..environments.names import sources_looked_up_once
        from .options import resolve

        run = contextlib.ExitStack()
        run.enter_context(sources_looked_up_once())
        config.add_cleanup(run.close)
        config.stash[SETTINGS] = resolve(config)
    return config.stash[SETTINGS]


def leg_of(node: pytest.Item) -> Leg:
    """Return the running leg, also for a test that requests our fixtures only at
    run time."""
    from .leg import Leg

    return node.stash.setdefault(LEG, Leg())


def uses_target(item: pytest.Item) -> bool:
    """Return whether the test uses one of our fixtures (all of them depend on ``vllm_env``)."""
    return "vllm_env" in getattr(item, "fixturenames", ())


def needs_legs(item: pytest.Item) -> bool:
    """Return whether we may run the test more than once: for the verdict on its case, or on smaller
    engines (--vllm-minimize)."""
    if not uses_target(item):
        return False
    return item.get_closest_marker("vllm_case") is not None or settings_of(item.config).minimize


_CONTROLLER = "vllm_regress_controller"
_AGENTS = "vllm_regress_agents"
_REFUSAL = "vllm_regress_refusal"


def refuse(config: pytest.Config, why: str) -> None:
    """Tell the controller, from an xdist worker, why no test can run."""
    config.workeroutput[_REFUSAL] = why  # type: ignore[attr-defined]


def refusal_of(node: Any) -> str:
    """Return, in the controller, why an xdist worker that has ended could run no test; empty if it
    could."""
    return str(getattr(node, "workeroutput", {}).get(_REFUSAL, ""))


def tell_worker(config: pytest.Config, workerinput: dict[str, Any], *, share: bool) -> None:
    """Pass to an xdist worker the identity of its controller, which this process is.

    ``share``: also the socket where it can get a forked agent.
    """
    import dataclasses

    from ..util.rundir import Owner

    workerinput[_CONTROLLER] = dataclasses.asdict(Owner.me())
    if share:
        from ..engines.processes.shared_agents import listening

        if SHARED_AGENTS not in config.stash:
            stack = contextlib.ExitStack()
            config.stash[SHARED_AGENTS] = stack.enter_context(listening())
            config.add_cleanup(stack.close)
        workerinput[_AGENTS] = config.stash[SHARED_AGENTS]


def shared_agents_of(config: pytest.Config) -> str:
    """Return the socket where this xdist worker can get a forked agent; empty if there is none."""
    return str(getattr(config, "workerinput", {}).get(_AGENTS, ""))


class Workers:
    """The workers of pytest-xdist in its controller: they are interrupted with it, so that their
    engines end at once. Otherwise execnet does that, after five seconds."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []

    @classmethod
    def add(cls, node: Any) -> None:
        manager, name = node.config.pluginmanager, "vllm_regress_workers"
        if not manager.has_plugin(name):
            manager.register(cls(), name)
        manager.get_plugin(name)._nodes.append(node)

    def pytest_keyboard_interrupt(self) -> None:
        if _is_in_foreground():  # the terminal has interrupted the workers, too
            return
        for node in self._nodes:
            with contextlib.suppress(AttributeError, OSError):
                node.gateway._io.popen.send_signal(signal.SIGINT)


def _is_in_foreground() -> bool:
    with contextlib.suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def controller_of(config: pytest.Config) -> Owner | None:
    """Return the controller of this xdist worker; None in any other process."""
    from ..util.codec import decode
    from ..util.rundir import Owner

    controller = getattr(config, "workerinput", {}).get(_CONTROLLER)
    return decode(Owner, controller, _CONTROLLER) if controller else None


def run_once(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Run set-up, call and tear-down of a test through all hooks.

    Return the reports, which are not logged yet.
    """
    return runtestprotocol(item, log=False, nextitem=nextitem)


def renew(item: pytest.Item) -> None:
    """Prepare a test for another run, as pytest-rerunfailures does."""
    item._initrequest()  # type: ignore[attr-defined]


def write_group(item: pytest.Item, name: str) -> None:
    """Append xdist's group to the test's id.

    Since pytest 9.2, xdist 3.8 cannot do that itself (pytest-xdist#1386).
    """
    if hasattr(item, "_id"):
        item._id = type(item._id).parse(f"{item.nodeid}@{name}")


def _timeout_settings(item: pytest.Item) -> Any:
    """Return what pytest-timeout does with this test; None without that plugin."""
    if not item.config.pluginmanager.hasplugin("timeout"):
        return None
    from pytest_timeout import _get_item_settings  # type: ignore[import-untyped]

    return _get_item_settings(item)


def outer_timeout(item: pytest.Item) -> float:
    """Return pytest-timeout's timeout for this test in seconds, 0 for none."""
    settings = _timeout_settings(item)
    return float(settings.timeout or 0.0) if settings else 0.0


def renew_timeout(item: pytest.Item) -> None:
    """Restart pytest-timeout's timer for another run of a test."""
    settings = _timeout_settings(item)
    if settings and settings.timeout and settings.timeout > 0 and not settings.func_only:
        item.ihook.pytest_timeout_cancel_timer(item=item)
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
