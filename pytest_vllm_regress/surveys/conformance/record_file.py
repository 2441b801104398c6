"""Read and write the file that keeps the runs of the conformance suite.

The file lists each check and each reason once. A run then needs one short word for each check, in
the order of the list:
``ok``, ``-`` (not run), or ``n/a:3`` and ``FAIL:7`` with the number of the reason.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...util.documents import load_json
from ...util.files import write_atomically
from .record import ABSENT, FAILED, MAX_BYTES, PASSED, CheckResult, SuiteRun

NOT_RUN = "-"
Check = tuple[str, str, str]
"""Section, check and engine generation."""


def read_record(path: Path) -> dict[tuple[str, str], SuiteRun]:
    """Return the runs in a record by environment and device; an empty dict if there is no file.

    Raises ``UsageError``.
    """
    if not path.exists():
        return {}
    try:
        document: dict[str, Any] = load_json(
            path, MAX_BYTES, what="a record of vllm-regress conformance"
        )
        checks = [_check(*fields) for fields in document["checks"]]
        runs = [_decode(fields, checks, document["reasons"]) for fields in document["runs"]]
        return {run.key: run for run in runs}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise UsageError(
            f"{path}: not a record of vllm-regress conformance: {error!r}. Give another file by --record"
        ) from None


def write_record(path: Path, runs: Mapping[tuple[str, str], SuiteRun]) -> None:
    """Write the runs where ``read_record`` finds them."""
    ordered = [runs[key] for key in sorted(runs)]
    results = [result for run in ordered for result in run.cells]
    checks = _order(ordered)
    reasons = list(dict.fromkeys(result.reason for result in results if result.outcome != PASSED))
    parts: dict[str, list[Any]] = {
        "checks": checks,
        "reasons": reasons,
        "runs": [_encode(run, checks, reasons) for run in ordered],
    }
    write_atomically(
        path,
        "{\n"
        + ",\n".join(f'"{name}": [\n{_lines(part)}\n]' for name, part in parts.items())
        + "\n}\n",
    )


def _order(runs: Iterable[SuiteRun]) -> list[Check]:
    """Return every check once.

    The run with the most checks, of these the oldest vLLM, decides the order.
    """
    fullest_first = sorted(runs, key=lambda run: (-len(run.cells), run.vllm))
    return list(dict.fromkeys(_key(result) for run in fullest_first for result in run.cells))


def _lines(values: Iterable[object]) -> str:
    """Return JSON with one value per line, so that a diff shows which one changed."""
    return ",\n".join(f" {json.dumps(value)}" for value in values)


def _encode(run: SuiteRun, checks: Sequence[Check], reasons: Sequence[str]) -> dict[str, Any]:
    numbers = {reason: number for number, reason in enumerate(reasons)}
    words = {
        _key(result): PASSED
        if result.outcome == PASSED
        else f"{result.outcome}:{numbers[result.reason]}"
        for result in run.cells
    }
    fields = {
        field.name: getattr(run, field.name)
        for field in dataclasses.fields(run)
        if field.name != "cells"
    }
    return {**fields, "outcomes": " ".join(words.get(check, NOT_RUN) for check in checks)}


def _decode(fields: dict[str, Any], checks: Sequence[Check], reasons: Sequence[str]) -> SuiteRun:
    words = fields["outcomes"].split(" ") if checks else []
    results = tuple(
        _result(check, word, reasons)
        for check, word in zip(checks, words, strict=True)
        if word != NOT_RUN
    )
    return SuiteRun(
        **{name: value for name, value in fields.items() if name != "outcomes"}, cells=results
    )


def _result(check: Check, word: str, reasons: Sequence[str]) -> CheckResult:
    outcome, _, number = word.partition(":")
    if outcome not in (PASSED, ABSENT, FAILED):
        raise ValueError(f"unknown outcome {outcome[:20]!r}")
    return CheckResult(*check, outcome, "" if outcome == PASSED else reasons[int(number)])


def _check(section: str, check: str, generation: str) -> Check:
    return section, check, generation


def _key(result: CheckResult) -> Check:
    return result.section, result.check, result.generation
