"""Measure how often the fixes of upstream that are suggested for a failure have the right one.

    python benchmarks/fixes.py --texts DIR [--half HALF] [--misses]

samples/fixes.jsonl names the reports: repository, number, versions, and the pull requests that fixed
each, or none. Their texts are not ours to publish. DIR has OWNER_NAME_NUMBER.txt for each, title in
the first line; a text with another SHA-256 than the one recorded is left out. A version that a report
does not name is that of its day.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_vllm_regress.answers.explain import log
from pytest_vllm_regress.answers.fixes.index import FixIndex, fix_index
from pytest_vllm_regress.answers.fixes.suggestions import Suggestion, evidence_of, suggest

SAMPLE = Path(__file__).parent / "samples" / "fixes.jsonl"


@dataclass(frozen=True)
class Outcome:
    """The suggestions for one report, and the place of the right one."""

    report: dict[str, Any]
    suggestions: list[Suggestion]
    place: int | None
    seconds: float


def version_of(report: dict[str, Any], index: FixIndex) -> str:
    """Return the version of a report that the index knows: named, or the release of its day."""
    versions: list[str] = report["versions"]
    for version in versions:
        if re.fullmatch(r"[0-9a-f]{7,9}", version):
            version = f"0.1+g{version}"
        if index.lacking(version):
            return version
    days = zip(index.releases, index.dates, strict=True)
    return [release for release, day in days if day <= report["date"]][-1]


def measure(texts: Path, half: str, *, about: bool) -> Iterator[Outcome]:
    """Yield the outcome of each report whose text is there as it was recorded."""
    index = fix_index()
    for report in map(json.loads, SAMPLE.read_text().splitlines()):
        name = report["id"].replace("/", "_").replace("#", "_")
        path = texts / f"{name}.txt"
        if report["half"] != half or not path.exists():
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest() != report["sha256"]:
            print(f"{path}: is not the text that was recorded; left out")
            continue
        title, _, body = path.read_text().partition("\n")
        start = time.process_time()
        said = title.lstrip("# ") if about else ""
        explanation = log.explain(io.BytesIO(body.encode()), (), path.name)
        suggestions = []
        if (evidence := evidence_of(explanation, said)) is not None:
            suggestions = suggest(evidence, version_of(report, index), index)
        numbers = [suggestion.fix.number for suggestion in suggestions]
        places = [place for place, number in enumerate(numbers) if number in report["fixes"]]
        seconds = time.process_time() - start
        yield Outcome(report, suggestions, places[0] if places else None, seconds)


def lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the figures with their counts."""
    fixed = [outcome for outcome in outcomes if outcome.report["fixes"]]
    likely = [o for o in outcomes if o.suggestions and o.suggestions[0].is_likely]
    right = [outcome for outcome in likely if outcome.place == 0]
    yield f"  {len(fixed)} reports with a fix, {len(outcomes) - len(fixed)} without"
    yield f"  first: {sum(o.place == 0 for o in fixed)} of {len(fixed)}"
    yield f"  among five: {sum(o.place is not None for o in fixed)} of {len(fixed)}"
    yield f"  likely: {len(likely)}, right: {len(right)}"
    yield f"  longest: {max(outcome.seconds for outcome in outcomes):.2f} s of processor time"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--half", choices=("development", "held out", "new", "newest"))
    parser.add_argument("--misses", action="store_true")
    options = parser.parse_args()
    for half in (options.half,) if options.half else ("development", "held out", "new", "newest"):
        for about in (False, True):
            outcomes = list(measure(options.texts, half, about=about))
            print(f"{half}, {'with the title' if about else 'the log alone'}:")
            print("\n".join(lines(outcomes)), flush=True)
            for outcome in outcomes if options.misses else ():
                if outcome.report["fixes"] and outcome.place is None:
                    print(f"    {outcome.report['id']}: {outcome.report['fixes']} not among five")


if __name__ == "__main__":
    main()
