"""Keys under which the plugin keeps its state on pytest's objects, and how to tell tests that are ours."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from ..util.owner import Owner

if TYPE_CHECKING:
    from ..engines.session import Session
    from ..engines.settings import Settings

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
SESSION: pytest.StashKey[Session] = pytest.StashKey()


def uses_target(item: pytest.Item) -> bool:
    """The test uses one of our fixtures (all of them depend on ``vllm_env``)."""
    return "vllm_env" in getattr(item, "fixturenames", ())


def needs_legs(item: pytest.Item) -> bool:
    """The test may be run more than once by us: for the verdict on its case, or (--vllm-minimize) on smaller engines."""
    judged = item.get_closest_marker("vllm_case") is not None or item.config.stash[SETTINGS].minimize
    return uses_target(item) and judged


_CONTROLLER = "vllm_regress_controller"


def tell_worker(workerinput: dict[str, Any]) -> None:
    """In xdist's controller: what a worker is to know of it."""
    workerinput[_CONTROLLER] = dataclasses.asdict(Owner.me())


def controller_of(config: pytest.Config) -> Owner | None:
    """The process that this xdist worker works for; None in any other process."""
    told = getattr(config, "workerinput", {}).get(_CONTROLLER)
    return Owner.from_json(told) if told else None
