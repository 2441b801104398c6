"""The summary at the end of a pytest run: one line per case and environment, and the result file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..cases.results import RunResult, TestResult, append_results, group_into_cells, write_results
from ..cases.verdict import excerpt
from ..errors import RegressError


def lines(results: Sequence[TestResult]) -> list[str]:
    """Return a line per case and environment with verdict and device, followed by the reasons for
    unexpected results."""
    summary = []
    for cell in sorted(
        group_into_cells(results), key=lambda cell: (cell.case_id, cell.environment, cell.device)
    ):
        counted = Counter(result.verdict for result in cell.results)
        counts = ", ".join(f"{count} {verdict.name}" for verdict, count in counted.items())
        simulated = " (simulated device)" if cell.device == "sim" else ""
        summary.append(
            f"{cell.verdict.name:19} {cell.case_id} on {cell.environment}, device {cell.device}{simulated}: {counts}"
        )
        unexpected: dict[tuple[str, str], list[str]] = {}
        for result in cell.results:
            if not result.expected:
                unexpected.setdefault((result.verdict.name, excerpt(result.reason)), []).append(
                    result.test
                )
        for (name, reason), tests in unexpected.items():
            more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
            summary.append(f"    {name} {tests[0]}{more}: {reason}")
    return summary


def write_report(file: Path, results: Sequence[TestResult], written: int = 0) -> None:
    """Write the result file of --vllm-report.

    A file whose name ends in .jsonl is read while the run goes on: the results after the first
    ``written`` ones are appended as one line.
    """
    try:
        if file.suffix == ".jsonl":
            append_results(file, RunResult(tuple(results[written:])), truncate=not written)
        else:
            write_results(file, RunResult(tuple(results)))
    except RegressError as error:
        import pytest

        raise pytest.UsageError(str(error)) from None
