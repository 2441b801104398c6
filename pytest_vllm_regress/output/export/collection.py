"""The tests of a case as pytest collects them: functions, values of parameters, and the engine that each asks for."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ...cases.model import Case
from ...engines.spec import EngineSpec
from ...errors import UsageError
from ...plugin.markers import engine_marker


@dataclasses.dataclass(frozen=True)
class CollectedTest:
    """One test with its values. ``id``: what follows the file's name in pytest's id. ``arguments``: names of the fixtures and parameters it takes.

    ``front`` and ``spec``: the engine of its marker. ``file``: the test file.
    """

    id: str
    function: str
    arguments: tuple[str, ...]
    values: Mapping[str, Any]
    fixtures: tuple[str, ...]
    front: str
    spec: EngineSpec
    file: Path


class _Collector:
    def __init__(self) -> None:
        self.tests: list[CollectedTest] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.tests = [_collected(item) for item in items if isinstance(item, pytest.Function)]


def collect(case: Case) -> tuple[CollectedTest, ...]:
    """Return the tests of a case in their order. Runs none of them. Raises ``UsageError`` if pytest cannot collect them."""
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
        for name in sys.modules.keys() - known:  # pytest would take them for those of another case of the same name
            if case.directory in Path(getattr(sys.modules[name], "__file__", None) or "").parents:
                del sys.modules[name]
    if status != pytest.ExitCode.OK:
        raise UsageError(f"{case.id}: pytest cannot collect its tests:\n{output.getvalue()[-2000:]}")
    return tuple(collector.tests)


def _collected(item: pytest.Function) -> CollectedTest:
    marker = engine_marker(item)
    params = dict(getattr(getattr(item, "callspec", None), "params", {}))
    axes = params.pop("engine_spec", {})
    params.pop("vllm_env", None)
    info = item._fixtureinfo
    return CollectedTest(
        id=item.name,
        function=item.originalname,
        arguments=tuple(info.argnames),
        values=params,
        fixtures=tuple(info.names_closure),
        front=str(marker.front),
        spec=EngineSpec.create(**{**marker.fixed, **axes}),
        file=item.path,
    )
