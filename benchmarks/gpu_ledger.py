"""The ledger of what was run on GPUs: which test of a case, check of the conformance suite and step of
``gpu_first.py``, on which vLLM and GPU, and how it ended.

As a plugin of pytest it writes each test when it has ended, and leaves out those that the ledger has,
so that a run that is killed loses nothing and the next one goes on.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.plugin.reporter import ATTRIBUTE
from pytest_vllm_regress.util.codec import Document
from pytest_vllm_regress.util.masking import mask
from pytest_vllm_regress.util.paths import strip_machine_paths
from pytest_vllm_regress.util.store import Store

WHERE = "VLLM_REGRESS_GPU_LEDGER"
"""Variable with a ``Where`` as JSON, for the pytest processes of a run."""
AGAIN = ("INCONCLUSIVE", "REGRESSED", "failed", "cut off", "left out")
"""Outcomes after which something is run again: they say nothing about the release, or may be an error
of this project. A failed check must also stay red in the next run."""
_MAX_TEXT = 2000


class Entry(Document, frozen=True):
    """How something ended: the verdict of a test of a case, otherwise "passed", "failed", "skipped",
    "done", "cut off" or "left out". ``text``: why. ``facts``: of the GPU, or what a step found."""

    outcome: str
    at: str
    seconds: float = 0.0
    text: str = ""
    facts: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True)
class Where:
    """``path`` of a ledger, and what is run: a ``release`` of vLLM on a ``gpu``, which in a
    ``rehearsal`` (why it is one, or "") is none."""

    path: str
    release: str
    gpu: str
    rehearsal: str = ""

    def open(self) -> Store[Entry]:
        """Return the ledger. Raises ``UsageError`` if it is one of a rehearsal and this is none."""
        return Store(Path(self.path), Entry, what="what was run on GPUs", key=self.rehearsal)

    def name(self, what: str) -> str:
        """Return the name of an entry: what was run, on which vLLM and GPU."""
        return f"{what} | vllm {self.release} | {self.gpu}"


def entry(outcome: str, text: str, seconds: float, facts: Mapping[str, Any]) -> Entry:
    """Return an entry of this moment, without secrets and this machine's paths."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = strip_machine_paths(mask(text))[:_MAX_TEXT]
    return Entry(outcome, at, round(seconds, 1), text, facts)


def is_known(ledger: Store[Entry], name: str) -> bool:
    """Return whether the ledger says how this ended."""
    return name in ledger and ledger[name].outcome not in AGAIN


def pytest_configure(config: pytest.Config) -> None:
    if text := os.environ.get(WHERE):
        config.pluginmanager.register(_Recorder(Where(**json.loads(text)), config))


class _Recorder:
    def __init__(self, where: Where, config: pytest.Config) -> None:
        self._where, self._ledger = where, where.open()
        self._is_worker = hasattr(config, "workerinput")
        self._open: dict[str, Entry] = {}
        """Tests that have not ended, by name: of their phases the one that decides."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        known = [i for i in items if is_known(self._ledger, self._name(i.nodeid, i))]
        config.hook.pytest_deselected(items=known)
        items[:] = [item for item in items if item not in known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        name = self._name(report.nodeid, report)
        before = self._open.get(name)
        if before is None or (before.outcome == "passed" and not report.passed):
            self._open[name] = before = entry(report.outcome, _text(report), report.duration, {})
        if (result := getattr(report, ATTRIBUTE, None)) is not None:
            verdict = result.verdict.name
            self._open[name] = entry(verdict, result.reason, report.duration, result.gpu)
        if report.when == "teardown":
            self._ledger.add(name, self._open.pop(name))

    def _name(self, test: str, of: pytest.Item | pytest.TestReport) -> str:
        facts = dict(of.user_properties)
        if "section" in facts:
            test = f"check {facts['generation']} {facts['section']}: {facts['check']}"
        stem, _, group = test.rpartition("@")  # of pytest-xdist
        return self._where.name(stem if stem and not re.search(r"\]|/|::", group) else test)


def _text(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else ""
