"""Shared parts of the pages of findings: table rows, upstream look-ups, and the section of findings
that are by design."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_vllm_regress.fuzz.finding_file import FindingFile, Upstream

F = TypeVar("F", bound=FindingFile)


def look_up(file: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Return what was looked up by hand: the entry of the first of these keys that ``file`` has."""
    known: dict[str, dict[str, Any]] = tomllib.loads(file.read_text(encoding="utf-8"))
    return next((known[key] for key in keys if key in known), {"words": [], "reports": []})


def with_upstream(finding: F, entry: dict[str, Any]) -> F:
    """Return the finding with the result of a search for upstream reports."""
    upstream = Upstream(tuple(entry["words"]), tuple(entry["reports"]))
    return dataclasses.replace(finding, upstream=upstream)  # type: ignore[type-var]


def row(finding: FindingFile, cells: Sequence[str]) -> str:
    """Return a row:

    ``cells``, the releases that fail, those that are right, and what upstream knows.
    """
    failing = [release for release, answer in finding.releases.items() if answer == "STILL FAILS"]
    sound = [release for release, answer in finding.releases.items() if answer == "FIXED"]
    upstream = ", ".join(finding.upstream.reports) or (
        f"not found ({'; '.join(finding.upstream.words)})"
        if finding.upstream.words
        else "not looked up"
    )
    return (
        f"| {' | '.join((*cells, ', '.join(failing) or '-', ', '.join(sound) or '-', upstream))} |"
    )


def listing(
    everything: Sequence[F],
    columns: Sequence[str],
    cells: Callable[[F], Sequence[str]],
    entry: Callable[[F], dict[str, Any]],
    title: Callable[[F], str],
    folder: str,
    of: Callable[[Sequence[F]], str] = lambda findings: "",
) -> str:
    """Return the table of findings with their count, and apart from it those that are by design,
    each with its reason.

    ``entry``: what was looked up for a finding. ``of``: of what the findings are, for the count.
    """
    findings = [finding for finding in everything if "by_design" not in entry(finding)]
    designed = [finding for finding in everything if "by_design" in entry(finding)]
    names = (*columns, "fails in", "right in", "upstream")
    lines = [
        f"| {' | '.join(names)} |",
        "|" + " --- |" * len(names),
        *(row(one, cells(one)) for one in findings),
    ]
    searched = sum(bool(finding.upstream.words) for finding in findings)
    known = sum(bool(finding.upstream.reports) for finding in findings)
    lines += [
        "",
        f"{len(findings)} findings{of(findings)}; {searched} looked up, {known} of these reported upstream.",
        "",
    ]
    if designed:
        lines += ["## By design", ""]
        lines += [
            f"- [{title(one)}](../{folder}/{one.name}): {entry(one)['by_design']}."
            for one in designed
        ]
        lines += [""]
    return "\n".join(lines)
