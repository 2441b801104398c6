"""Writes what became of each test of a user's own suite, for ``vllm-regress matrix -- pytest``.

Every process that has the option writes, but xdist's workers: their controller gets all reports.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from ..runner.pytest_run import OUTER_TIMEOUT_S
from ..runner.suite import SuiteTest, TestOutcome, suite_report
from ..util.masking import mask

MAX_TEXT = 64 * 1024
"""Characters of a test's report that are kept: the failure, then what was printed."""
_IN_A_TEST = ("setup", "call")


def limit_each_test(config: pytest.Config) -> None:
    """Let pytest-timeout end a test that takes as long as no test of ours may, unless the user has
    set a limit. Called before pytest-timeout is configured."""
    if config.pluginmanager.hasplugin("timeout") and not config.getini("timeout"):
        os.environ.setdefault("PYTEST_TIMEOUT", str(OUTER_TIMEOUT_S))


class SuiteReporter:
    """Plugin object of pytest, in the process that gets all reports."""

    def __init__(self, path: Path) -> None:
        self._tests = suite_report(path)
        self._reports: dict[str, list[pytest.TestReport]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._expect(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            text = _text(report)
            self._tests.add(report.nodeid or ".", SuiteTest(TestOutcome.ERROR, text=text))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _without_group(report.nodeid)
        self._reports.setdefault(name, []).append(report)
        if report.when not in _IN_A_TEST:  # the teardown, or the end of a worker
            self._tests.add(name, _test(self._reports.pop(name)))

    def _expect(self, ids: Iterable[str]) -> None:
        names = dict.fromkeys(map(_without_group, ids))
        not_run = SuiteTest(TestOutcome.NOT_RUN)
        self._tests.add_all({name: not_run for name in names if name not in self._tests})


def _test(reports: Sequence[pytest.TestReport]) -> SuiteTest:
    """Return what became of a test, by the reports of its phases."""
    seconds = round(sum(report.duration for report in reports), 3)
    failed = next((report for report in reports if report.failed), None)
    if failed is not None:
        in_call = failed.when == "call"
        outcome = TestOutcome.FAILED if in_call else TestOutcome.ERROR
        return SuiteTest(outcome, seconds, _text(failed))
    skipped = next((report for report in reports if report.skipped), None)
    if skipped is not None:
        return SuiteTest(TestOutcome.SKIPPED, seconds, _reason(skipped))
    return SuiteTest(TestOutcome.PASSED, seconds)


def _reason(report: pytest.TestReport) -> str:
    expected: str | None = getattr(report, "wasxfail", None)
    if expected is not None:
        return mask(f"expected to fail: {expected}")[:MAX_TEXT]
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return mask(reason)[:MAX_TEXT]


def _text(report: pytest.TestReport | pytest.CollectReport) -> str:
    printed = (f"{name}\n{text}" for name, text in report.sections)
    return mask("\n".join([report.longreprtext, *printed]))[:MAX_TEXT]


def _without_group(nodeid: str) -> str:
    """Return the id without the group that xdist appends, which names the environment."""
    stem, _, group = nodeid.rpartition("@")
    return nodeid if not stem or re.search(r"\]|/|::", group) else stem
