"""Keys under which the plugin keeps its state on pytest's objects, and how to tell tests that are ours."""

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
    """What was asked for: resolved at the first use, since who uses nothing of ours pays for nothing."""
    if SETTINGS not in config.stash:
        from .options import resolve

        config.stash[SETTINGS] = resolve(config)
    return config.stash[SETTINGS]


def evidence_of(node: pytest.Item) -> Evidence:
    """The evidence of the leg that runs; also for a test that asks for our fixtures only while it runs."""
    from .evidence import Evidence

    return node.stash.setdefault(EVIDENCE, Evidence())


def uses_target(item: pytest.Item) -> bool:
    """The test uses one of our fixtures (all of them depend on ``vllm_env``)."""
    return "vllm_env" in getattr(item, "fixturenames", ())


def needs_legs(item: pytest.Item) -> bool:
    """The test may be run more than once by us: for the verdict on its case, or (--vllm-minimize) on smaller engines."""
    if not uses_target(item):
        return False
    return item.get_closest_marker("vllm_case") is not None or settings_of(item.config).minimize


_CONTROLLER = "vllm_regress_controller"


def tell_worker(workerinput: dict[str, Any]) -> None:
    """In xdist's controller: what a worker is to know of it."""
    import dataclasses

    from ..util.owner import Owner

    workerinput[_CONTROLLER] = dataclasses.asdict(Owner.me())


def controller_of(config: pytest.Config) -> Owner | None:
    """The process that this xdist worker works for; None in any other process."""
    from ..util.owner import Owner

    told = getattr(config, "workerinput", {}).get(_CONTROLLER)
    return Owner.from_json(told) if told else None
