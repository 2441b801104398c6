"""The tests of a case as pytest collects them: functions, values of parameters, and the engine that
each asks for."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..engines.spec import Axis, Front, front_named, full_names, parse_axes
from ..errors import UsageError
from ..util.validation import format_value
from .model import Case

_OWN_KEYS = ("front", "fresh", "timeout")


@dataclass(frozen=True)
class EngineMarker:
    """The marker's arguments, checked. ``fixed`` and ``axes`` are EngineSpec fields."""

    front: Front
    fresh: bool
    timeout: float | None
    fixed: dict[str, Any]
    axes: tuple[Axis, ...]


_PARSED: pytest.StashKey[tuple[tuple[pytest.Mark, ...], EngineMarker]] = pytest.StashKey()


def engine_marker(node: Any) -> EngineMarker:
    """Return all ``vllm_engine`` markers of a test as one, the nearest first. They are parsed again
    when one was added."""
    markers = tuple(node.iter_markers("vllm_engine"))
    if _PARSED not in node.stash or node.stash[_PARSED][0] != markers:
        node.stash[_PARSED] = markers, _parsed(markers)
    return node.stash[_PARSED][1]  # type: ignore[no-any-return]


def _parsed(markers: Iterable[pytest.Mark]) -> EngineMarker:
    arguments: dict[str, Any] = {}
    for marker in markers:
        if marker.args:
            raise UsageError(
                f"vllm_engine takes keyword arguments only, got {marker.args!r}; e.g. vllm_engine(tensor_parallel_size=[1, 2])"
            )
        arguments = {**full_names(marker.kwargs), **arguments}
    own = {key: arguments.pop(key) for key in _OWN_KEYS if key in arguments}
    front = front_named(own.get("front", "offline"))
    fresh = own.get("fresh", False)
    if not isinstance(fresh, bool):
        raise UsageError(f"vllm_engine: fresh={format_value(fresh)} is neither True nor False")
    fixed, axes = parse_axes(arguments, _OWN_KEYS)
    return EngineMarker(front, fresh, _seconds(own.get("timeout")), fixed, axes)


def _seconds(timeout: object) -> float | None:
    if timeout is None or (
        isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout > 0
    ):
        return timeout
    raise UsageError(
        f"vllm_engine: timeout={format_value(timeout)} is not a positive number of seconds"
    )


class _Collector:
    def __init__(self) -> None:
        self.tests: list[pytest.Function] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.tests = [item for item in items if isinstance(item, pytest.Function)]


def items(case: Case) -> tuple[pytest.Function, ...]:
    """Return the tests of a case in their order. Runs none of them.

    Raises ``UsageError`` if pytest cannot collect them.
    """
    collector, output = _Collector(), io.StringIO()
    options = [
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        f"--rootdir={case.directory}",
    ]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        known = frozenset(sys.modules)
        status = pytest.main([*options, str(case.directory)], plugins=[collector])
        for name in (
            sys.modules.keys() - known
        ):  # pytest would take them for those of another case of the same name
            if case.directory in Path(getattr(sys.modules[name], "__file__", None) or "").parents:
                del sys.modules[name]
    if status != pytest.ExitCode.OK:
        raise UsageError(
            f"{case.id}: pytest cannot collect its tests:\n{output.getvalue()[-2000:]}"
        )
    return tuple(collector.tests)


def parameters(item: Any) -> dict[str, Any]:
    """Return the values of a test's parameters."""
    return dict(getattr(getattr(item, "callspec", None), "params", {}))
