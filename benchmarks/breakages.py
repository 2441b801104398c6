"""Measure `vllm-regress uses` against breakages that other projects documented.

    python benchmarks/breakages.py CLONES [--half HALF] [--misses] [--sample 200]

CLONES has a git directory for each project, named ``owner+name`` (a bare clone, or a folder
``repo`` in it). benchmarks/breakages.json has for each breakage the project's last revision before
its fix, the issue, the first release that the issue names, and the symbol. A breakage is found if
the report for that release has a problem in that file which names the symbol, or the module that is
gone.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import hashlib
import io
import json
import random
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses.answer import MissingUse, UsesAnswer, answer
from pytest_vllm_regress.answers.uses.project import read_project

FILE = Path(__file__).with_name("breakages.json")
HALVES = ("development", "held-out")
SAMPLE = "2026-11-28"
READ = (
    "*.py",
    "*.ipynb",
    "*.sh",
    "*.yaml",
    "*.yml",
    "*.toml",
    "*.cfg",
    "*requirements*",
    "*Dockerfile*",
    "*Makefile",
)
SEED = 39


@dataclasses.dataclass(frozen=True)
class Breakage:
    """``visible``: whether the file names what the release lacks; docs/reference/uses-measured.md
    defines it. ``sample``: the sample in which somebody else chose and labelled it, if any."""

    repo: str
    revision: str
    file: str
    issue: str
    release: str
    symbol: str
    kind: str
    visible: bool
    sample: str = ""

    @property
    def half(self) -> str:
        """The sample, or else the half by the hash of the issue's address, so that nobody chooses it."""
        return self.sample or HALVES[hashlib.sha256(self.issue.encode()).digest()[0] % 2]

    @property
    def name(self) -> str:
        return self.symbol.rpartition("(")[2].rstrip(")").rpartition(".")[2]

    def is_reported(self, problem: MissingUse) -> bool:
        """Return whether a problem is about this breakage."""
        if problem.use.place.file != self.file:
            return False
        if gone := re.match(r"the module (\S+) does not exist", problem.text):
            return f"{self.symbol}.".startswith(f"{gone[1]}.")
        pattern = rf"(?<![\w-]){re.escape(self.name)}(?!\w)"
        return re.search(pattern, f"{problem.text} {problem.use.name}") is not None


def breakages() -> list[Breakage]:
    return [Breakage(**entry) for entry in json.loads(FILE.read_text(encoding="utf-8"))]


def git_directory(clones: Path, repo: str) -> Path:
    folder = clones / repo.replace("/", "+")
    return folder / "repo" if (folder / "repo").is_dir() else folder


@functools.cache
def report(clones: Path, repo: str, revision: str, files: tuple[str, ...] = ()) -> UsesAnswer:
    """Return the answer for one revision of a project, or for some of its files."""
    git = ["git", "-C", str(git_directory(clones, repo))]
    if not files:
        listed = subprocess.run(
            [*git, "ls-tree", "-r", "--name-only", revision], check=True, capture_output=True
        )
        names = listed.stdout.decode().splitlines()
        files = tuple(name for name in READ if any(Path(path).match(name) for path in names))
    command = [*git, "archive", revision, "--", *files]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
        history = History.load()
        return answer(read_project(Path(folder), history), history)


def found(clones: Path, breakage: Breakage) -> bool:
    problems = report(clones, breakage.repo, breakage.revision, (breakage.file,)).problems.get(
        breakage.release, ()
    )
    return any(map(breakage.is_reported, problems))


def recall(clones: Path, chosen: Sequence[Breakage], misses: bool) -> None:
    """Print how many breakages are found, by half and whether they are visible."""
    counts: dict[tuple[str, bool], collections.Counter[bool]] = collections.defaultdict(
        collections.Counter
    )
    for breakage in chosen:
        is_found = found(clones, breakage)
        counts[breakage.half, breakage.visible][is_found] += 1
        if misses and breakage.visible and not is_found:
            print(
                f"missed: {breakage.issue} {breakage.release} {breakage.file} {breakage.symbol} {breakage.revision[:9]}"
            )
    for (half, visible), results in sorted(counts.items()):
        print(
            f"{half}, {'visible' if visible else 'not visible'}: {results[True]} of {results.total()} found"
        )


def sample(clones: Path, chosen: Iterable[Breakage], number: int) -> None:
    """Print findings in whole projects that are chosen at random, the same ones in every run, each
    for one release."""
    choose = random.Random(SEED)
    newest = {breakage.repo: breakage.revision for breakage in chosen}
    findings: list[tuple[str, ...]] = []
    for repo, revision in sorted(newest.items()):
        releases: dict[tuple[str, ...], list[str]] = collections.defaultdict(list)
        for release, problems in report(clones, repo, revision).problems.items():
            for problem in problems:
                if problem.breaks:
                    key = (
                        repo,
                        revision,
                        str(problem.use.place),
                        problem.use.kind,
                        problem.use.name,
                        problem.text,
                    )
                    releases[key].append(release)
        findings += [(*key, choose.choice(where)) for key, where in sorted(releases.items())]
    print(f"{len(findings)} findings")
    for finding in choose.sample(findings, min(number, len(findings))):
        print("\t".join(finding))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clones", type=Path)
    parser.add_argument("--half", choices=(*HALVES, SAMPLE))
    parser.add_argument(
        "--misses", action="store_true", help="name the breakages that are not found"
    )
    parser.add_argument(
        "--sample", type=int, default=0, metavar="N", help="print N findings to look at"
    )
    arguments = parser.parse_args()
    selected = [entry for entry in breakages() if arguments.half in (None, entry.half)]
    if arguments.sample:
        sample(arguments.clones, selected, arguments.sample)
    else:
        recall(arguments.clones, selected, arguments.misses)
