"""Measure how long the main job takes, compared with the same cases one environment at a time and
with full deadlines.

    python benchmarks/main_job.py [CASE ...] [--rounds N]

Both sides run the same cases in the same environments, which are built first: `vllm-regress run` as
it is, and with `--jobs 1` and `--vllm-full-deadlines`, where every documented hang is waited for to
the end. It prints both medians and their ratio, which is the number to compare, and exits with
status 1 if the verdicts differ.
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
from pytest_vllm_regress.cases.loading import load_all_cases, select_cases
from pytest_vllm_regress.runner.plan import plan_batches

ROOT = Path(__file__).resolve().parent.parent
MAIN_JOB = ("lmfe-124", "lmfe-124-pp", "vllm-16140", "vllm-17173")
FULL = ("--jobs", "1", "--", "--vllm-full-deadlines")

Verdicts = dict[tuple[str, str], str]


def main() -> int:
    """Measure and print. Return 1 if the verdicts of the two sides differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "cases",
        nargs="*",
        default=list(MAIN_JOB),
        metavar="CASE",
        help="cases (default: the main job's)",
    )
    parser.add_argument(
        "--rounds", type=int, default=1, help="number of rounds; each runs both sides (default 1)"
    )
    parser.add_argument("--cases-dir", type=Path, default=ROOT / "cases")
    options = parser.parse_args()
    for job in plan_batches(select_cases(load_all_cases(options.cases_dir), options.cases)):
        _command("env", "build", job.environment, check=True)
    normal: list[float] = []
    sequential: list[float] = []
    verdicts_of_runs: list[Verdicts] = []
    for number in range(options.rounds):
        for seconds, more, description in (
            (sequential, FULL, "one by one, full deadlines"),
            (normal, (), "as it is"),
        ):
            took, verdicts = _run(options.cases, more)
            seconds.append(took)
            verdicts_of_runs.append(verdicts)
            print(
                f"round {number + 1}, {description}: {took:.0f} s, {len(verdicts)} verdicts",
                flush=True,
            )
    same = all(verdicts == verdicts_of_runs[0] for verdicts in verdicts_of_runs)
    ratio = statistics.median(normal) / statistics.median(sequential)
    print(
        "\n| main job | one by one, full deadlines, s | as it is, s | ratio | verdicts |\n| --- | --- | --- | --- | --- |"
    )
    print(
        f"| {', '.join(options.cases)} | {statistics.median(sequential):.0f} | {statistics.median(normal):.0f} | {ratio:.2f} | "
        f"{'the same' if same else 'DIFFER'} |"
    )
    for key in sorted({key for verdicts in verdicts_of_runs for key in verdicts}):
        values = [verdicts.get(key, "none") for verdicts in verdicts_of_runs]
        if len(set(values)) > 1:
            print(f"{key[1]} on {key[0]}: {', '.join(values)}")
    return 0 if same else 1


def _run(cases: Sequence[str], more: Sequence[str]) -> tuple[float, Verdicts]:
    """Run the cases once. Return the seconds and the verdicts by environment and test."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "results.json")
        began = time.perf_counter()
        _command("run", *cases, "--yes", "--out", str(report), *more, check=False)
        took = time.perf_counter() - began
        return took, {
            (result.environment, result.test): result.verdict.value
            for result in results.read_results(report).results
        }


def _command(*words: str, check: bool) -> None:
    subprocess.run(
        [sys.executable, "-m", "pytest_vllm_regress", *words],
        cwd=ROOT,
        check=check,
        stdin=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    sys.exit(main())
