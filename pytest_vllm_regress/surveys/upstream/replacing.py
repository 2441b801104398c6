"""pytest plugin for a run of upstream's tests in the target interpreter: puts our classes in the
place of upstream's and records each result.

It is not part of the plugin that users load. ``vllm-regress survey upstream`` names it on pytest's
command line.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import pytest

RECORD = "VLLM_REGRESS_UPSTREAM_RECORD"
"""File to which each event is appended as a JSON line."""
REPLACED = "VLLM_REGRESS_UPSTREAM_REPLACED"
"""What is replaced: ``server``, ``runner``, both separated by a comma, or nothing."""
STARTS_SERVERS = "VLLM_REGRESS_UPSTREAM_STARTS_SERVERS"
"""``1`` if a file of the run names ``RemoteOpenAIServer``."""
_PLACE = os.environ.get(RECORD, os.devnull)  # read once: tests change the environment
_UTILITIES = "tests.utils"
_MAX_REASON = 4000


class _Finder(importlib.abc.MetaPathFinder):
    """Finds upstream's utilities as usual, and replaces the classes of servers once they are
    executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _UTILITIES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        from pytest_vllm_regress.surveys.upstream.drop_ins import (
            RemoteLaunchRenderServer,
            RemoteOpenAIServer,
        )

        for ours in (RemoteOpenAIServer, RemoteLaunchRenderServer):
            if hasattr(module, ours.__name__):
                setattr(module, ours.__name__, ours)


def _replaced() -> set[str]:
    return set(os.environ.get(REPLACED, "server").split(","))


def pytest_addoption() -> None:
    """Install the finders before upstream's first conftest is imported, and begin to import vLLM
    for the servers."""
    from pytest_vllm_regress.target_site.vllm_regress_target import reached

    reached.install()
    if "server" in _replaced():
        sys.meta_path.insert(0, _Finder())
        if os.environ.get(STARTS_SERVERS) == "1":
            from pytest_vllm_regress.surveys.upstream.settings import begin_warming

            begin_warming()


def pytest_sessionstart() -> None:
    conftest = sys.modules.get("tests.conftest")
    if conftest is not None and "runner" in _replaced():
        from pytest_vllm_regress.surveys.upstream.drop_ins import VllmRunner

        vars(conftest)["VllmRunner"] = VllmRunner


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what an earlier process of this run has begun, also the test that ended it, and
    record which tests there are."""
    begun = _begun()
    left_out = [item for item in items if item.nodeid in begun]
    items[:] = [item for item in items if item.nodeid not in begun]
    config.hook.pytest_deselected(items=left_out)
    _append(event="collected", tests=[item.nodeid for item in items])


def pytest_collection_finish() -> None:
    """Take what the imports have made from garbage collection, which upstream's conftest asks for
    after each test. 0.11 and later also ask before for everything back: that does nothing until an
    engine in this process has frozen objects of its own."""
    freeze, unfreeze = gc.freeze, gc.unfreeze

    def freeze_for_engine() -> None:
        freeze()
        vars(gc)["unfreeze"] = unfreeze

    gc.collect()
    gc.freeze()
    vars(gc).update(freeze=freeze_for_engine, unfreeze=lambda: None)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome != "passed" and report.nodeid not in _begun():
        reason = _reason(report.longrepr)
        _append(event="end", test=report.nodeid, outcome=report.outcome, reason=reason, seconds=0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Record the start of a test, and let no server that does not start use up the test's time."""
    from pytest_vllm_regress.surveys.upstream import settings

    settings.begin_test(item.config.getoption("timeout") or math.inf)
    _append(event="start", test=item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record how a test ended: its call, or what failed or was skipped before or after it."""
    if report.when == "call" or report.outcome != "passed":
        failed_as_expected = hasattr(report, "wasxfail") and not isinstance(report.longrepr, tuple)
        _append(
            event="end",
            test=report.nodeid,
            outcome="passed" if failed_as_expected else report.outcome,
            reason=_reason(report.longrepr),
            when=report.when,
            seconds=round(report.duration, 3),
        )


def pytest_sessionfinish() -> None:
    _append(event="finished")


def _reason(longrepr: Any) -> str:
    """Return the exceptions of a failure, root first, each with its place if that is in the tests;
    the reason of a skip."""
    if isinstance(longrepr, tuple):
        return str(longrepr[2])
    chain: Iterable[Any] = getattr(longrepr, "chain", None) or ()
    parts = []
    for _, crash, _ in chain:
        if crash is not None:
            place = os.path.relpath(crash.path)
            where = "" if place.startswith("..") else f" ({place}:{crash.lineno})"
            parts.append(crash.message + where)
    text = "\n".join(parts) or str(longrepr or "")
    half = _MAX_REASON // 2
    return text if len(text) <= _MAX_REASON else f"{text[:half]} ... {text[-half:]}"


def _begun() -> set[str]:
    try:
        with open(_PLACE, encoding="utf-8") as record:
            events = list(map(json.loads, record))
    except FileNotFoundError:
        return set()
    return {event["test"] for event in events if event["event"] in ("start", "end")}


def _append(**event: Any) -> None:
    with open(_PLACE, "a", encoding="utf-8") as record:
        record.write(json.dumps(event) + "\n")
