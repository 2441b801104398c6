"""The page of upstream's own tests, and ``python -m tools.upstream FILE...``, which takes results
(results.json of ``vllm-regress survey upstream --out DIR``) into docs/records/upstream, one record
for each vLLM. The results of a file of tests replace earlier ones, unless the record is of another
commit.

    python -m tools.upstream /tmp/units/results.json /tmp/servers/results.json
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from pytest_vllm_regress.surveys.upstream.tests import (
    NOT_SKIPPED,
    ListedTest,
    UpstreamOutcome,
    entry_for,
    listed_tests,
    outcome_of,
)
from pytest_vllm_regress.util.report import Markup, Table
from pytest_vllm_regress.util.text import markdown_cell

from . import page as pages

DOCS = Path(__file__).parents[1] / "docs"
RECORDS = DOCS / "records" / "upstream"
_REASON = 160
_OF_MACHINE = re.compile(r"; dossier: \S+| \(\.\./.*")
"""What a reason has after its sentence: paths outside the tests."""
_OWN_LINE = (UpstreamOutcome.FAILED, UpstreamOutcome.MEANING)
"""Outcomes of which the record and the page name each test; of the others, they count equal
reasons."""


def entry_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the record of one file of tests: the number that passed, each failure, and counts of
    equal reasons of the others."""
    passed = sum(result["outcome"] == UpstreamOutcome.PASSED for result in results)
    own: dict[str, list[str]] = {}
    others: Counter[tuple[str, str]] = Counter()
    for result in results:
        outcome, reason = (
            result["outcome"],
            _OF_MACHINE.sub("", result["reason"]).replace(str(Path.home()), "~")[:_REASON],
        )
        if outcome in _OWN_LINE:
            own[result["test"].partition("::")[2] or "(import)"] = [outcome, reason]
        elif outcome != UpstreamOutcome.PASSED:
            others[outcome, reason] += 1
    skipped: dict[str, list[Any]] = {}
    for (outcome, reason), number in others.most_common():
        skipped.setdefault(outcome, [0, reason])[0] += (
            number  # of several reasons, the most frequent one
        )
    return {"passed": passed, "failed": own, "skipped": skipped}


def add(path: Path) -> None:
    """Take over the results of one run."""
    run = json.loads(path.read_text(encoding="utf-8"))
    place = RECORDS / f"{run['vllm']}.json"
    record = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    if record.get("commit") != run["commit"]:
        record = {"vllm": run["vllm"], "commit": run["commit"], "files": {}}
    results = defaultdict(list)
    for result in run["results"]:
        results[result["test"].partition("::")[0]].append(result)
    record["files"].update({file: entry_of(of_file) for file, of_file in results.items()})
    record["files"] = dict(sorted(record["files"].items()))
    RECORDS.mkdir(exist_ok=True)
    place.write_text(json.dumps(record, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def triage_again(record: dict[str, Any]) -> None:
    """Give failures the outcomes and reasons that the list and the patterns of errors have now."""
    listed = listed_tests(record["files"])
    for file, of_file in record["files"].items():
        for test, (outcome, why) in list(of_file["failed"].items()):
            by_error = (
                outcome_of("failed", why)
                if outcome == UpstreamOutcome.FAILED
                else UpstreamOutcome(outcome)
            )
            entry = entry_for(f"{file}::{test}", listed) or ListedTest(by_error, why)
            if entry.outcome in _OWN_LINE:
                of_file["failed"][test] = [entry.outcome.value, entry.why]
            else:
                del of_file["failed"][test]
                of_file["skipped"].setdefault(entry.outcome.value, [0, entry.why])[0] += 1


def records() -> list[dict[str, Any]]:
    """Return the records by release."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in RECORDS.glob("*.json")]
    for record in found:
        triage_again(record)
    return sorted(found, key=lambda record: [int(part) for part in record["vllm"].split(".")[:3]])


def counts_of(entry: dict[str, Any]) -> Counter[str]:
    """Return the number of tests of a file by outcome."""
    number = Counter({str(UpstreamOutcome.PASSED): entry["passed"]})
    number.update(outcome for outcome, _ in entry["failed"].values())
    number.update({outcome: count for outcome, (count, _) in entry["skipped"].items()})
    return number


def summary(every: list[dict[str, Any]]) -> Table:
    """Return the table of releases and outcomes."""
    totals = [
        sum((counts_of(entry) for entry in record["files"].values()), Counter[str]())
        for record in every
    ]
    ran = [
        sum(any(counts_of(entry)[kind] for kind in NOT_SKIPPED) for entry in of_files)
        for of_files in (record["files"].values() for record in every)
    ]
    shares = [
        total["passed"] / max(1, sum(total[kind.value] for kind in NOT_SKIPPED)) for total in totals
    ]
    rows: dict[str, list[str]] = {
        "tests of commit": [Markup(f"`{record['commit'][:10]}`") for record in every],
        "files": [str(len(record["files"])) for record in every],
        "files with a test that was not skipped": list(map(str, ran)),
        **{outcome.value: [str(total[outcome]) for total in totals] for outcome in UpstreamOutcome},
        "passed of those not skipped": [Markup(f"{share:.0%}") for share in shares],
    }
    header = ("", *(record["vllm"] for record in every))
    return Table(header, [(name, *cells) for name, cells in rows.items()])


def section(record: dict[str, Any]) -> tuple[Table, Table]:
    """Return the tables of one release: its files, and the tests that did not pass although they
    could run."""
    files = []
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for file, entry in record["files"].items():
        number = counts_of(entry)
        skipped = "; ".join(
            f"{count} {kind}: {markdown_cell(why[:90])}"
            for kind, (count, why) in entry["skipped"].items()
        )
        mark = " (V0)" if entry.get("default") == "V0" else ""
        cells = [str(number[kind] or "") for kind in ("passed", "failed", "meaning")]
        files.append((Markup(f"{file}{mark}"), *cells, Markup(skipped)))
        for test, (outcome, why) in entry["failed"].items():
            grouped.setdefault((f"{file}::{test.partition('[')[0]}", outcome, why), []).append(test)
    header = ("file", "passed", "failed", "meaning", "skipped, and the most frequent reason")
    tests = []
    for (test, outcome, why), of_test in grouped.items():
        times = f" ({len(of_test)} parameters)" if len(of_test) > 1 else ""
        tests.append((Markup(f"{test.removeprefix('tests/')}{times}"), outcome, why[:150]))
    return Table(header, files), Table(("test", "outcome", "why"), tests)


def page() -> str:
    """Return the page of all releases."""
    every = records()
    sections = [(record, section(record)) for record in every]
    return pages.render("upstream", summary=summary(every), sections=sections)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        add(Path(argument))
