"""Collects verdicts as reports arrive (also from xdist workers), shows them, and writes the result
file.

The result file is updated after the last test of each case, so a run without xdist that is killed
loses no finished case. The tests of a case are contiguous.

How does a verdict of an xdist worker get into the file? Under xdist a worker sends each
``TestResult`` as JSON with its report, and the controller alone writes the file, at the end. An
interrupted run omits cases with unfinished tests, because those could change the verdict of the
case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from .state import SESSION, SETTINGS

if TYPE_CHECKING:
    from ..cases.results import TestResult

# The attribute of a report that carries its verdict, a ``TestResult``; only between xdist's
# processes it is plain JSON.
ATTRIBUTE = "vllm_regress"
_NAME = "vllm_regress_recorder"
_MARKUP = {
    "REPRODUCED": {"yellow": True},
    "FIXED": {"green": True},
    "NOT_APPLICABLE": {"yellow": True},
}


_LETTERS = {"passed": ".", "skipped": "s", "xfailed": "x", "failed": "F", "error": "E"}


def register(config: pytest.Config) -> None:
    """Register the recorder, once per pytest process that has tests of ours."""
    if not config.pluginmanager.has_plugin(_NAME):
        config.pluginmanager.register(Recorder(config), _NAME)


class Recorder:
    """Plugin object that collects results and writes the report. Every pytest process has one; only
    that of the xdist controller, or of a run without
    xdist, writes the file."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._results: list[TestResult] = []
        self._folders: list[str] = []  # of their tests
        self._missing: dict[str, set[str]] = {}  # tests that have not finished, by folder
        self._written = 0  # number of results in the report
        self._skipped = self._ran = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._expect(ids)  # each worker has collected the same tests

    def _expect(self, tests: Iterable[str]) -> None:
        for test in tests:
            self._missing.setdefault(_folder(test), set()).add(test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._skipped |= report.skipped and not hasattr(report, "wasxfail")
        passed = report.when == "call" and report.passed
        self._ran |= report.failed or hasattr(report, "wasxfail") or passed
        result = getattr(report, ATTRIBUTE, None)
        if result is not None:
            self._results.append(result)
            self._folders.append(_folder(report.nodeid))
        if report.when == "teardown":
            self._missing.get(_folder(report.nodeid), set()).discard(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(
        self,
    ) -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
        data = yield
        if data is not None and ATTRIBUTE in data:
            data[ATTRIBUTE] = data[ATTRIBUTE].to_json()
        return data

    @pytest.hookimpl(wrapper=True)
    def pytest_report_from_serializable(self) -> Generator[None, Any, Any]:
        report = yield
        if isinstance(plain := getattr(report, ATTRIBUTE, None), dict):
            from ..cases.results import TestResult
            from ..util.codec import decode

            setattr(report, ATTRIBUTE, decode(TestResult, plain, "a report of a worker"))
        return report

    def pytest_report_teststatus(self, report: pytest.TestReport) -> Any:
        """Show the verdict as the word of -v; letter and category stay pytest's own."""
        result = getattr(report, ATTRIBUTE, None)
        if result is None:
            return None
        verdict = result.verdict.value
        word = (verdict, _MARKUP.get(verdict, {"red": True}))
        category: str = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        if report.failed and report.when != "call":
            category = "error"
        return category, _LETTERS[category], word

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._results:
            from ..util.text import one_line

            terminalreporter.section("documented failures")
            for line in summary_lines(self._results):
                terminalreporter.write_line(one_line(line))
        if self._nothing_on_gpu:
            terminalreporter.write_line(
                f"Nothing was shown on a GPU: every {'case was NOT_APPLICABLE' if self._results else 'test was skipped'}. The run fails.",
                red=True,
            )
        if SESSION not in self._config.stash or self._config.getoption("vllm_impostors"):
            return  # what engines leave behind that an impostor has ended says nothing about them
        for user, leftovers in self._config.stash[SESSION].leftover_reports:
            from ..engines.processes.child_processes import describe_leftovers
            from ..util.text import printable

            terminalreporter.section("left behind by engines (removed)")
            terminalreporter.write_line(printable(f"{user}:\n{describe_leftovers(leftovers)}"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Update the result file after the last test of each case, so that finished cases survive
        the end of this process."""
        done = yield
        if self._results and nextitem is not None and nextitem.path.parent != item.path.parent:
            self._write(self._results)
        return done

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        broken_off = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        cut = session.exitstatus in broken_off
        self._write(self._complete_results() if cut else self._results)
        if self._nothing_on_gpu and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def _nothing_on_gpu(self) -> bool:
        """Whether a run on real GPUs skipped every case, or every test.

        It must not pass, since it has shown nothing.
        """
        # Missing if no option is set and no test used the plugin.
        settings = self._config.stash.get(SETTINGS, None)
        if settings is None or settings.device != "gpu" or hasattr(self._config, "workerinput"):
            return False
        if self._results:
            return all(result.verdict.name == "NOT_APPLICABLE" for result in self._results)
        return self._skipped and not self._ran

    def _complete_results(self) -> list[TestResult]:
        """Return the results of cases whose tests have all finished."""
        results = zip(self._results, self._folders, strict=True)
        return [result for result, folder in results if not self._missing.get(folder)]

    def _write(self, results: Sequence[TestResult]) -> None:
        settings = self._config.stash.get(SETTINGS, None)
        file = settings.report if settings is not None else None
        if file is None or hasattr(self._config, "workerinput"):
            return
        from ..cases.results import RunResult, append_results, write_results
        from ..errors import UsageError

        try:
            if file.suffix == ".jsonl":  # is read while the run goes on
                added = RunResult(tuple(results[self._written :]))
                append_results(file, added, truncate=not self._written)
            else:
                write_results(file, RunResult(tuple(results)))
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None
        self._written = len(results)


def summary_lines(results: Sequence[TestResult]) -> Iterator[str]:
    """Yield a line per case and environment with verdict and device, followed by the reasons for
    unexpected results."""
    from ..cases.results import group_into_cells
    from ..cases.verdict import excerpt

    for cell in sorted(
        group_into_cells(results), key=lambda cell: (cell.case_id, cell.environment, cell.device)
    ):
        counted = Counter(result.verdict.name for result in cell.results)
        counts = ", ".join(f"{count} {name}" for name, count in counted.items())
        simulated = " (simulated device)" if cell.device == "sim" else ""
        yield (
            f"{cell.verdict.name:19} {cell.case_id} on {cell.environment}, "
            f"device {cell.device}{simulated}: {counts}"
        )
        unexpected: dict[tuple[str, str], list[str]] = {}
        for result in cell.results:
            if not result.expected:
                key = result.verdict.name, excerpt(result.reason)
                unexpected.setdefault(key, []).append(result.test)
        for (name, reason), tests in unexpected.items():
            more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
            yield f"    {name} {tests[0]}{more}: {reason}"


def _folder(test: str) -> str:
    """Return the folder of the file that has the test: the folder of its case."""
    return test.partition("::")[0].rpartition("/")[0]
