"""A plugin of pytest that keeps the result of each check of the conformance suite when it has ended,
and leaves out those that an earlier run has kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ..util.codec import Document
from ..util.masking import mask
from ..util.store import Store

RECORD = "VLLM_REGRESS_CHECK_RECORD"
"""Variable with the path of the record."""
_GPU = "vllm_gpu_"


class KeptCheck(Document, frozen=True):
    """How a check ended. ``text``: why it was skipped or failed. ``gpu``: what it ran on."""

    section: str
    check: str
    generation: str
    outcome: str
    text: str = ""
    gpu: Mapping[str, str] = {}


def open_checks(path: Path) -> Store[KeptCheck]:
    """Return the checks that were kept in a file."""
    return Store(path, KeptCheck, what="checks of the conformance suite")


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get(RECORD):
        is_worker = hasattr(config, "workerinput")
        config.pluginmanager.register(_Recorder(open_checks(Path(path)), records=not is_worker))


class _Recorder:
    """``records``: False in workers of pytest-xdist, whose reports reach the controller."""

    def __init__(self, kept: Store[KeptCheck], *, records: bool) -> None:
        self._kept, self._records = kept, records
        self._failed: dict[str, tuple[str, str]] = {}
        """Outcome and text of a check that has not ended, by its node."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept = [item for item in items if _name(dict(item.user_properties)) in self._kept]
        config.hook.pytest_deselected(items=kept)
        items[:] = [item for item in items if item not in kept]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        facts = {name: str(value) for name, value in report.user_properties}
        if not self._records or "section" not in facts:
            return
        if not report.passed and report.nodeid not in self._failed:
            self._failed[report.nodeid] = (report.outcome, _text(report))
        if report.when == "teardown":
            outcome, text = self._failed.pop(report.nodeid, ("passed", ""))
            names = (facts["section"], facts["check"], facts["generation"])
            gpu = {n.removeprefix(_GPU): v for n, v in facts.items() if n.startswith(_GPU)}
            self._kept.add(_name(facts), KeptCheck(*names, outcome, mask(text), gpu))


def _name(facts: Mapping[str, object]) -> str:
    return f"{facts.get('generation')} {facts.get('section')}: {facts.get('check')}"


def _text(report: pytest.TestReport) -> str:
    """Return why a check did not pass, the message first: of the check, or of a fixture around it."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else ""
    where = "" if report.when == "call" else f"{report.when} of a fixture: "
    return f"{where}{message}\n{report.longreprtext}"
