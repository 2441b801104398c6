"""Axes: what the marker ``vllm_engine`` and several environments make of one test function."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ..engines.spec import combination_id, combinations, parse_axes
from ..errors import UsageError
from .session import session_of
from .stash import SETTINGS

_ENGINE_FIXTURES = ("engine_spec", "vllm_engine", "vllm_server")
_OWN_KEYS = ("front", "fresh", "timeout")
FRONTS = ("offline", "async", "serve")


@dataclasses.dataclass(frozen=True)
class EngineMarker:
    """The marker's arguments, checked. ``fixed`` and ``axes`` are EngineSpec fields."""

    front: str
    fresh: bool
    timeout: float | None
    fixed: dict[str, Any]
    axes: tuple[Any, ...]


def engine_marker(node: Any) -> EngineMarker:
    """Read all ``vllm_engine`` markers of a test, nearest first."""
    given: dict[str, Any] = {}
    for marker in node.iter_markers("vllm_engine"):
        if marker.args:
            raise UsageError(
                f"vllm_engine takes keyword arguments only, got {marker.args!r}; e.g. vllm_engine(tensor_parallel_size=[1, 2])"
            )
        given = {**marker.kwargs, **given}
    own = {key: given.pop(key) for key in _OWN_KEYS if key in given}
    front = own.get("front", "offline")
    if front not in FRONTS:
        raise UsageError(f"vllm_engine: front={front!r} is not one of {', '.join(FRONTS)}")
    fixed, axes = parse_axes(given)
    return EngineMarker(front, bool(own.get("fresh", False)), own.get("timeout"), fixed, axes)


def generate(metafunc: pytest.Metafunc) -> None:
    """Parametrize over environments and over the marker's axes."""
    if metafunc.config.stash[SETTINGS].environments:
        names = session_of(metafunc.config).environment_names()
        if len(names) > 1:
            metafunc.parametrize("vllm_env", names, indirect=True, scope="session")
    try:
        marker = engine_marker(metafunc.definition)
    except UsageError as error:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: {error}") from None
    if not marker.axes:
        return
    if "engine_spec" not in metafunc.fixturenames:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: vllm_engine gives axes ({', '.join(a.name for a in marker.axes)}), but the test uses none of the "
            f"fixtures {', '.join(_ENGINE_FIXTURES)}"
        )
    combos = combinations(marker.axes)
    metafunc.parametrize("engine_spec", combos, indirect=True, ids=[combination_id(c) for c in combos])
