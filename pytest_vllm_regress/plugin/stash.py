"""Stash keys for the plugin's state on pytest's objects, and which tests are ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..engines.session import Session
    from ..engines.settings import Settings
    from ..util.owner import Owner
    from .evidence import Evidence

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
SESSION: pytest.StashKey[Session] = pytest.StashKey()
EVIDENCE: pytest.StashKey[Evidence] = pytest.StashKey()


def settings_of(config: pytest.Config) -> Settings:
    """Return the settings.

    They are resolved on first use, so that runs without our tests pay nothing.
    """
    if SETTINGS not in config.stash:
        from .options import resolve

        config.stash[SETTINGS] = resolve(config)
    return config.stash[SETTINGS]


def evidence_of(node: pytest.Item) -> Evidence:
    """Return the evidence of the running leg, also for a test that requests our fixtures only at
    run time."""
    from .evidence import Evidence

    return node.stash.setdefault(EVIDENCE, Evidence())


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
_REFUSAL = "vllm_regress_refusal"


def refuse(config: pytest.Config, why: str) -> None:
    """Tell the controller, from an xdist worker, why no test can run."""
    config.workeroutput[_REFUSAL] = why  # type: ignore[attr-defined]


def refusal_of(node: Any) -> str:
    """Return, in the controller, why an xdist worker that has ended could run no test; empty if it
    could."""
    return str(getattr(node, "workeroutput", {}).get(_REFUSAL, ""))


def tell_worker(workerinput: dict[str, Any]) -> None:
    """Tell an xdist worker, from the controller, which process the controller is."""
    import dataclasses

    from ..util.owner import Owner

    workerinput[_CONTROLLER] = dataclasses.asdict(Owner.me())


def controller_of(config: pytest.Config) -> Owner | None:
    """Return the controller of this xdist worker; None in any other process."""
    from ..util.owner import Owner

    controller = getattr(config, "workerinput", {}).get(_CONTROLLER)
    return Owner.from_json(controller) if controller else None
