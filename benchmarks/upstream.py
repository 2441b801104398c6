"""Measure files of upstream's tests with upstream's own `RemoteOpenAIServer`, compared with ours,
both on the simulated device.

    python benchmarks/upstream.py --source CLONE [FILE ...] [--rounds N]

Both sides run the same files in the same environment, with the same aliases of hub names, one
pytest for all files. Ours runs first, so that upstream's finds the files in the page cache. It
prints the seconds of each file (its tests with their fixtures) and of the whole command, and writes
docs/records/upstream-benchmark.json. The ratio of the whole command is the number to compare. It
exits with status 1 if a test ended otherwise on one side than on the other.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.environments.git import Repository
from pytest_vllm_regress.surveys.upstream.tests import UpstreamRequest, UpstreamRun, run_tests
from pytest_vllm_regress.surveys.upstream.tree import write_tree
from pytest_vllm_regress.util.rundir import scratch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.engines import machine

RECORD = Path(__file__).resolve().parent.parent / "docs" / "records" / "upstream-benchmark.json"
GOAL = 0.15
FOLDER = "tests/entrypoints/openai"
FILES = tuple(
    f"{FOLDER}/test_{name}.py"
    for name in (
        *(
            "async_tokenization",
            "basic",
            "chat",
            "chat_echo",
            "completion",
            "embedding",
            "lora_adapters",
            "metrics",
        ),
        *(
            "models",
            "pooling",
            "rerank",
            "return_tokens_as_ids",
            "root_path",
            "score",
            "sleep",
            "tokenization",
        ),
    )
)
"""The files of this folder at v0.8.5 that start servers with a model of text and have a test that
passes."""
SIDES: Mapping[str, tuple[str, ...]] = {"ours": ("server",), "upstream's": ()}
"""Classes of upstream's that ours replace, by side."""


@dataclasses.dataclass
class Times:
    """Seconds of each round by side: of the whole command, and of the tests of each file with their
    fixtures."""

    whole: dict[str, list[float]]
    files: dict[str, dict[str, list[float]]]

    def table(self) -> list[str]:
        """Return the medians and their ratios as Markdown."""
        lines = ["| file | ours, s | upstream's, s | ratio |", "| --- | --- | --- | --- |"]
        for name, of_sides in [
            *self.files.items(),
            (f"{len(self.files)} files, whole command", self.whole),
        ]:
            ours, others = (median(of_sides[side]) for side in SIDES)
            lines.append(
                f"| {name.removeprefix(FOLDER + '/')} | {ours:.1f} | {others:.1f} | {ours / others:.2f} |"
            )
        return lines

    @property
    def ratio(self) -> float:
        """Median time of the whole command with our servers, divided by that with upstream's."""
        return median(self.whole["ours"]) / median(self.whole["upstream's"])


def run(request: UpstreamRequest, folder: Path) -> tuple[UpstreamRun, dict[str, float]]:
    """Run the files once. Return the results, and the seconds of each file by its path."""
    done = run_tests(
        request, folder / "pytest.log", lambda line: print(line, file=sys.stderr, flush=True)
    )
    seconds = dict.fromkeys(request.files, 0.0)
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        module = case.get("classname", "").replace(".", "/") + "/"
        for file in request.files:
            if module.startswith(file.removesuffix(".py") + "/"):
                seconds[file] += float(case.get("time", "0"))
    return done, seconds


def differences(runs: Sequence[UpstreamRun]) -> list[str]:
    """Return the tests that ended differently in ``runs``, with their outcomes."""
    outcomes = [{result.test: result.outcome.value for result in done.results} for done in runs]
    tests = dict.fromkeys(test for of_run in outcomes for test in of_run)
    ends = {test: [of_run.get(test, "no result") for of_run in outcomes] for test in tests}
    return [
        f"{test}: {', '.join(of_test)}" for test, of_test in ends.items() if len(set(of_test)) > 1
    ]


def main() -> int:
    """Measure, print the tables and write the record.

    Return 1 if the outcomes of the two sides differ.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "files", nargs="*", default=list(FILES), metavar="FILE", help="files of tests"
    )
    parser.add_argument("--source", type=Path, required=True, help="a clone of vLLM's sources")
    parser.add_argument(
        "--ref", default="v0.8.5", help="the revision whose tests are run (default v0.8.5)"
    )
    parser.add_argument("--env", default="vllm-0.8.5", help="the environment (default vllm-0.8.5)")
    parser.add_argument(
        "--rounds", type=int, default=1, help="number of rounds; each runs both sides (default 1)"
    )
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    runs: list[UpstreamRun] = []
    with bare_session(device="sim") as session, scratch() as temporary:
        (temporary / "tree").mkdir()
        tree = write_tree(Repository.at(options.source), options.ref, temporary / "tree")
        files = tree.select(options.files)
        target = session.target(options.env)
        times = Times(
            {side: [] for side in SIDES}, {file: {side: [] for side in SIDES} for file in files}
        )
        for number, (side, replaced) in itertools.product(range(options.rounds), SIDES.items()):
            folder = temporary / f"{side}-{number}"
            folder.mkdir()
            load = os.getloadavg()[0]
            arguments = (f"--junitxml={folder / 'report.xml'}",)
            done, seconds = run(
                UpstreamRequest(
                    tree, files, target, folder / "dossiers", replaced, pytest_args=arguments
                ),
                folder,
            )
            runs.append(done)
            times.whole[side].append(done.seconds)
            for file in files:
                times.files[file][side].append(seconds[file])
            passed = sum(result.outcome == "passed" for result in done.results)
            print(
                f"round {number + 1}, {side}: {done.seconds:.0f} s, {passed} of {len(done.results)} passed; "
                f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after",
                flush=True,
            )
    differing = differences(runs)
    record = {
        "machine": machine(),
        "environment": options.env,
        "commit": tree.commit.id,
        "whole_s": times.whole,
        "files_s": times.files,
        "ratio": times.ratio,
        "differing": differing,
    }
    options.record.write_text(json.dumps(record, indent=1) + "\n")
    print("", *times.table(), sep="\n")
    for line in differing:
        print(f"other outcomes: {line}")
    print(
        f"ratio {times.ratio:.3f}, at most {GOAL}: {'reached' if times.ratio <= GOAL else 'not reached'}"
    )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
