"""Measure `vllm-regress uses`: how often it is right about public repositories, and how long it
takes.

    python benchmarks/uses.py --trees DIR [--half dev] [--claims]
    python benchmarks/uses.py --speed

`DIR` has a folder `owner+name` with the files of each repository in samples/uses.jsonl at its
commit (`git archive`). The sample was chosen and labelled before tuning: `breaks` are what some
release lacks (`guarded`: the project handles it, or does not use it), `routes` whether a place
speaks to vLLM, `ranges` the releases that a project says it works with. A claim is one thing that
is missing from some release, once for each file. Claims without a label were read one by one
afterwards; `judged` has the results. The halves `2026-11-28...` have only claims that were drawn
and judged before their repositories were used for development.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_vllm_regress.answers.api_history.store import FILE, History, history
from pytest_vllm_regress.answers.uses.answer import UsesAnswer, answer
from pytest_vllm_regress.answers.uses.project import read_project
from pytest_vllm_regress.util.versions import specifiers_of

SAMPLE = Path(__file__).parent / "samples" / "uses.jsonl"
FILES, USING = 1000, 200
PLAIN = '"""A module."""\n\n' + "\n".join(
    f"def f{n}(a, b=1):\n    return [a, b, {n}]\n" for n in range(40)
)
ENGINE = (
    PLAIN
    + """
from vllm import LLM, SamplingParams
from vllm.sampling_params import GuidedDecodingParams
from vllm.utils import get_open_port

class Server:
    def __init__(self):
        self.llm = LLM("m", seed=1, gpu_memory_utilization=0.5, swap_space=2)

    def answer(self, prompts):
        params = SamplingParams(n=2, guided_decoding=GuidedDecodingParams(regex="a"))
        return self.llm.generate(prompts, params, use_tqdm=False)
"""
)
REMOVAL = "will be removed"


@dataclass(frozen=True)
class Claim:
    """Something that is missing from a release, or will be removed."""

    kind: str
    file: str
    line: int
    text: str
    name: str


def claims(result: UsesAnswer) -> list[Claim]:
    """Return what an answer claims, once for each file and text."""
    problems = [problem for lacking in result.problems.values() for problem in lacking]
    found = {
        (problem.use.place.file, problem.text): Claim(
            problem.use.kind,
            problem.use.place.file,
            problem.use.place.line,
            problem.text,
            problem.use.detail or problem.use.targets[0],
        )
        for problem in reversed(problems)
    }
    removals = (
        Claim(REMOVAL, d.use.place.file, d.use.place.line, d.message, d.use.name)
        for d in result.deprecated
    )
    return [*found.values(), *removals]


def is_about(claim: Claim, label: dict[str, Any]) -> bool:
    last = label["name"].rpartition(".")[2]
    words = f"{claim.text} {claim.name}".replace(".", " ").replace("_, ", " ").split()
    module, is_missing, _ = claim.text.removeprefix("the module ").partition(" does not exist")
    is_above = is_missing and label["name"].startswith(f"{module}.")
    named = last in words or label["name"] in words or is_above
    return claim.file == label["file"] and bool(named)


def is_right(claim: Claim, entry: dict[str, Any]) -> bool | None:
    """Return whether the labels confirm a claim; None if they do not mention it."""
    for judged in entry["judged"]:
        if (judged["file"], judged["text"]) == (claim.file, claim.text):
            right: bool = judged["right"]
            return right
    if claim.kind in ("route", "metric"):
        labels = [
            route["vllm"]
            for route in entry["routes"]
            if route["file"] == claim.file and route["path"].endswith(claim.name)
        ]
        if labels:
            return any(labels)
    if claim.kind == REMOVAL:
        return None
    about = [label for label in entry["breaks"] if is_about(claim, label)]
    return any(not label["guarded"] for label in about) if about else None


def measure(trees: Path, half: str, show: bool) -> None:
    """Print how many claims about a half of the sample are right, and what was found."""
    entries = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    counts: Counter[tuple[str, bool | None]] = Counter()
    breaks: Counter[bool] = Counter()
    taken: Counter[tuple[bool, bool]] = Counter()
    ranges: Counter[bool] = Counter()
    seconds: dict[str, float] = {}
    for entry in (entry for entry in entries if entry["half"] == half):
        tree = trees / entry["repository"].replace("/", "+")
        start = time.process_time()
        result = answer(read_project(tree, history()), history())
        seconds[entry["repository"]] = time.process_time() - start
        found = claims(result)
        for claim in found:
            right = is_right(claim, entry)
            counts[claim.kind, right] += 1
            if show:
                state = {True: "right", False: "FALSE", None: "not judged"}[right]
                print(
                    f"{state:10} {entry['repository']}/{claim.file}:{claim.line}: {claim.kind}: {claim.text}"
                )
        for label in entry["breaks"]:
            if not label["guarded"]:
                is_found = any(is_about(claim, label) for claim in found)
                breaks[is_found] += 1
                if show and not is_found:
                    print(
                        f"MISSED     {entry['repository']}/{label['file']}:{label['line']}: {label['name']}"
                    )
        for route, is_taken in _taken(result, entry):
            taken[route["vllm"], is_taken] += 1
            if show and is_taken != route["vllm"]:
                print(
                    f"{'TAKEN' if is_taken else 'NOT TAKEN'}     {entry['repository']}/{route['file']}:{route['line']}: {route['path']}"
                )
        for text in entry["ranges"]:
            ranges[_has_reason(result, text)] += 1
    print(
        f"{half}: {len(seconds)} repositories, {sum(seconds.values()):.0f} s, at most {max(seconds.values()):.1f} s"
    )
    for kind in sorted({kind for kind, _ in counts}):
        correct, false, unknown = (counts[kind, state] for state in (True, False, None))
        print(f"  {kind}: {correct + false + unknown} claims, {false} false, {unknown} not judged")
    print(f"  breaks found: {breaks[True]} of {breaks.total()}")
    print(
        f"  places that speak to vLLM: {taken[True, True]} of {taken[True, True] + taken[True, False]} taken as that"
    )
    print(
        f"  places that do not: {taken[False, True]} of {taken[False, True] + taken[False, False]} taken for vLLM's"
    )
    print(f"  declared ranges with a break outside: {ranges[True]} of {ranges.total()}")


def _taken(result: UsesAnswer, entry: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the labelled places, and whether the answer takes them for vLLM's."""
    uses = [use for use in result.project.uses if use.kind in ("route", "metric")]
    for route in entry["routes"]:
        yield (
            route,
            any(
                use.place.file == route["file"]
                and abs(use.place.line - route["line"]) <= 2
                and route["path"].endswith(use.targets[0])
                for use in uses
            ),
        )


def _has_reason(result: UsesAnswer, text: str) -> bool:
    """Return whether the answer says that something breaks outside a range."""
    specifiers = specifiers_of(text)
    return specifiers is not None and any(
        problem.breaks
        for release, problems in result.problems.items()
        if release not in specifiers
        for problem in problems
    )


def least(run: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def ask(folder: Path) -> None:
    loaded = History.load()
    answer(read_project(folder, loaded), loaded)


def speed() -> None:
    """Print seconds of processor time, the least of three runs."""
    print(f"{FILE.name}: {FILE.stat().st_size} bytes")
    print(f"open the history: {least(History.load):.4f} s")
    print(
        f"open it and look up a name: {least(lambda: History.load().symbols('vllm.entrypoints.llm')):.4f} s"
    )
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            Path(folder, f"m{number}.py").write_text(ENGINE if number < USING else PLAIN)
        print(f"{FILES} files, of which {USING} use vLLM: {least(lambda: ask(Path(folder))):.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trees", type=Path)
    parser.add_argument(
        "--half", action="append", help="dev, test, 2026-11-28 (default: dev and test)"
    )
    parser.add_argument("--claims", action="store_true")
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    if arguments.speed:
        speed()
    if arguments.trees:
        for half in arguments.half or ("dev", "test"):
            measure(arguments.trees, half, arguments.claims)
