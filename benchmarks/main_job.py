"""How long the main job takes, and how much of its deadlines it needs: ``python benchmarks/main_job.py [CASE ...]``.

Both sides run the same cases in the same environments, which are built first, one side after the other in one run: as `vllm-regress run` does it, and
one environment at a time with `--vllm-full-deadlines`, where every documented hang is waited for to its end.
The verdicts must be the same; the ratio is what to compare.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_vllm_regress.cases import results
from pytest_vllm_regress.cases.model import find_cases, select
from pytest_vllm_regress.runner import runner as runs

ROOT = Path(__file__).resolve().parent.parent
MAIN_JOB = ("lmfe-124", "lmfe-124-pp", "vllm-16140", "vllm-17173")
FULL = ("--jobs", "1", "--", "--vllm-full-deadlines")

Verdicts = dict[tuple[str, str], str]


def main() -> int:
    """Measure and print; exit status 1 when the two sides disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "cases", nargs="*", default=list(MAIN_JOB), metavar="CASE", help="cases (default: the main job's)"
    )
    parser.add_argument("--rounds", type=int, default=1, help="rounds, the two sides in turn (default 1)")
    parser.add_argument("--cases-dir", type=Path, default=ROOT / "cases")
    given = parser.parse_args()
    for job in runs.plan(select(find_cases(given.cases_dir), given.cases)):
        _command("env", "build", job.environment, check=True)
    ours: list[float] = []
    theirs: list[float] = []
    found: list[Verdicts] = []
    for number in range(given.rounds):
        for seconds, more, what in ((theirs, FULL, "one by one, full deadlines"), (ours, (), "as it is")):
            took, verdicts = _run(given.cases, more)
            seconds.append(took)
            found.append(verdicts)
            print(f"round {number + 1}, {what}: {took:.0f} s, {len(verdicts)} verdicts", flush=True)
    same = all(each == found[0] for each in found)
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(
        "\n| main job | one by one, full deadlines, s | as it is, s | ratio | verdicts |\n| --- | --- | --- | --- | --- |"
    )
    print(
        f"| {', '.join(given.cases)} | {statistics.median(theirs):.0f} | {statistics.median(ours):.0f} | {ratio:.2f} | "
        f"{'the same' if same else 'DIFFER'} |"
    )
    for key in sorted({key for each in found for key in each}):
        seen = [each.get(key, "none") for each in found]
        if len(set(seen)) > 1:
            print(f"{key[1]} on {key[0]}: {', '.join(seen)}")
    return 0 if same else 1


def _run(cases: Sequence[str], more: Sequence[str]) -> tuple[float, Verdicts]:
    """Seconds of one run of the cases, and its verdicts by environment and test."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "results.json")
        began = time.perf_counter()
        _command("run", *cases, "--yes", "--results", str(report), *more, check=False)
        took = time.perf_counter() - began
        return took, {(each.environment, each.test): each.verdict.value for each in results.read(report).results}


def _command(*words: str, check: bool) -> None:
    subprocess.run(
        [sys.executable, "-m", "pytest_vllm_regress", *words], cwd=ROOT, check=check, stdin=subprocess.DEVNULL
    )


if __name__ == "__main__":
    sys.exit(main())
