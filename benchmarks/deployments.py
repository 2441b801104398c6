"""Measure how `vllm-regress audit --serve` reads public deployment files, against labels that were
written before the reader was tuned on one half of them.

    python benchmarks/deployments.py [HALF] [--files DIR] [-v]

`more` was collected later, to find what the reader did not know; its labels were checked against
what it reads, so it is a regression test and no measurement.

`samples/deployments.jsonl` names each file by repository, commit, path and SHA-256, and says what it
starts. The file itself is read from DIR/ID/NAME, or else fetched from GitHub. It prints, for each
half: files that were read right, read but wrong, and not read; servers whose version was found; and
files with a wrong "not reachable": a documented failure that the labels leave open.

Labels: options have their long names, and values as far as the file determines them. `complete`: the
file names all options. `by_template`: what a template of the same chart adds; a reader of this file
alone cannot know it, but must not rule it out. `vllm_also`: a version from an annotation.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_vllm_regress.answers.deployments.configuration import Deployment, read_deployments
from pytest_vllm_regress.answers.deployments.reader import UNSET
from pytest_vllm_regress.answers.deployments.relevance import Reach, relevance
from pytest_vllm_regress.cases.loading import default_cases_dir, load_all_cases
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.errors import UsageError

SAMPLE = Path(__file__).parent / "samples" / "deployments.jsonl"
HALVES = (
    "dev",
    "test",
    "more",
    "new",
    "newest",
    "2026-11-28",
    "2026-11-28-second",
    "2026-11-28-third",
    "2026-11-28-fourth",
    "2026-11-28-fifth",
    "2026-11-28-sixth",
)
RELEASES = ("0.8.5", "0.10.2", "0.19.0")
"""For which what is reachable is compared if the label has no version."""


@dataclass
class Result:
    """How well a file was read. ``problems``: where the answer differs from the label."""

    sample: dict[str, Any]
    outcome: str = "right"
    problems: list[str] = field(default_factory=list)
    versions: Counter[str] = field(default_factory=Counter)
    unreachable: list[str] = field(default_factory=list)


def judge(sample: dict[str, Any], path: Path, cases: list[Case]) -> Result:
    result = Result(sample)
    try:
        found = list(read_deployments(str(path)))
    except UsageError as error:
        found = []
        result.problems.append(str(error))
    for label in sample["each"]:
        result.versions["labelled"] += label["vllm"] is not None
    if not found and sample["servers"]:
        result.outcome = "not read"
        return result
    result.problems = []
    if len(found) != sample["servers"]:
        result.problems.append(f"{len(found)} servers, {sample['servers']} are labelled")
    has_variables = any(
        mark in path.read_text("utf-8", "replace") for mark in ("$", "{", "environ", "getenv")
    )
    for label in sample["each"]:
        if found:
            differences, place = min(
                ((list(_differences(label, place, has_variables)), place) for place in found),
                key=lambda pair: len(pair[0]),
            )
            found.remove(place)
            result.problems += differences
            result.versions["found"] += label["vllm"] is not None and place.release == label["vllm"]
            result.unreachable += _denied(label, place, cases)
    result.outcome = "read but wrong" if result.problems else "right"
    return result


def _labelled(label: dict[str, Any], *, template: bool = False) -> Deployment:
    """Return the label as a deployment: the command line that has the same options."""
    words = ["vllm", "serve", *([label["model"]] if label["model"] else [])]
    for name, value in (label.get("by_template", {}) if template else {}).items():
        words += [f"{name}={value}" if value is not True else name]
    for name, value in label["options"].items():
        words += [f"{name}={value}" if value is not True else name]
    (place,) = read_deployments(shlex.join(words))
    return replace(place, complete=label["complete"])


def _differences(label: dict[str, Any], place: Deployment, has_variables: bool) -> Iterator[str]:
    expected = _labelled(label).options
    optional = _labelled(label, template=True).options
    for name in sorted({*expected, *place.options}):
        value, wanted = place.options.get(name), expected.get(name)
        if name not in expected:
            as_written = value == UNSET or any(mark in str(value) for mark in ("$", "{", "__"))
            is_off = value is False  # as if it were not named
            if name not in optional and not is_off and not (name == "model" and as_written):
                yield f"{name}={value!r} is too much"
        elif name not in place.options:
            yield f"{name}={wanted!r} is missing"
        elif not (_same(value, wanted) or (value == UNSET and has_variables)):
            yield f"{name}={value!r}, labelled {wanted!r}"
    if place.complete != label["complete"]:
        yield f"complete is {place.complete}"
    if place.release not in (label["vllm"] or "", *label.get("vllm_also", ())):
        yield f"version {place.release or 'none'}, labelled {label['vllm']}"


def _same(value: object, wanted: object) -> bool:
    texts = [str(text).strip() for text in (value, wanted)]
    try:
        documents = [json.loads(text.lower()) for text in texts]
    except ValueError:
        return texts[0] == texts[1] or wanted == UNSET
    return bool(documents[0] == documents[1])


def _denied(label: dict[str, Any], place: Deployment, cases: list[Case]) -> Iterator[str]:
    """Yield the failures that are called not reachable although the label leaves them open."""
    expected = _labelled(label, template=True)
    expected = replace(expected, variables=place.variables)
    for release in [label["vllm"]] if label["vllm"] else RELEASES:
        versions = {"vllm": release}
        for case in cases:
            if not case.is_affected(versions):
                continue
            said, right = (relevance(case, versions, [one]) for one in (place, expected))
            if said.reach is Reach.NOT_REACHABLE and right.reach is not Reach.NOT_REACHABLE:
                yield f"{release} {case.id}: {said.reason}"


def content_of(sample: dict[str, Any], folder: Path | None) -> bytes:
    """Return the file of a sample. Raises ``ValueError`` if it is another one."""
    name = Path(sample["path"]).name
    if folder is not None:
        content: bytes = (folder / sample["id"] / name).read_bytes()
    else:
        place = f"{sample['repository']}/{sample['commit']}/{sample['path']}"
        with urllib.request.urlopen(f"https://raw.githubusercontent.com/{place}") as answer:
            content = bytes(answer.read())
    if hashlib.sha256(content).hexdigest() != sample["sha256"]:
        raise ValueError(f"{sample['id']}: not the file that was labelled")
    return content


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("half", nargs="?", choices=HALVES)
    parser.add_argument("--files", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true")
    arguments = parser.parse_args()
    cases = list(load_all_cases(default_cases_dir()))
    samples = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()]
    for half in [arguments.half] if arguments.half else HALVES:
        results = []
        for sample in samples:
            if sample["half"] == half:
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder, Path(sample["path"]).name)
                    path.write_bytes(content_of(sample, arguments.files))
                    results.append(judge(sample, path, cases))
        _print(half, results, verbose=arguments.verbose)


def _print(half: str, results: list[Result], *, verbose: bool) -> None:
    counts = Counter(result.outcome for result in results)
    versions = sum((result.versions for result in results), Counter[str]())
    denied = [result for result in results if result.unreachable]
    print(f"{half}: {len(results)} files")
    for outcome in ("right", "read but wrong", "not read"):
        print(f"  {outcome}: {counts[outcome]} ({counts[outcome] / len(results):.0%})")
    print(f'  wrong "not reachable": {len(denied)}')
    print(f"  version found: {versions['found']} of {versions['labelled']}")
    for result in results if verbose else ():
        if result.outcome != "right" or result.unreachable:
            print(f"{result.sample['id']} {result.sample['form']}: {result.outcome}")
            for problem in (*result.problems, *result.unreachable[:3]):
                print(f"    {problem[:200]}")


if __name__ == "__main__":
    main()
