"""Compare 200 random pairs of a change and a release with the sources of the release.

    python benchmarks/containment.py CLONE [--sources DIR] [--count N] [--seed N]

CLONE has the history of vLLM; DIR has RELEASE.zip with the files of each wheel, otherwise they are
read from the user's package index. The releases are the last without the change and the first two
with it, by the index. The lines of the change say whether it is there, if most of them agree; the
rest is printed to be judged by hand: later changes may have replaced the lines.
"""

from __future__ import annotations

import argparse
import functools
import random
import subprocess
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_vllm_regress.answers.fixes.index import Fix, FixIndex, fix_index
from pytest_vllm_regress.environments.wheels import read_members, read_release
from tools.fixes.changes import HEAD_FORMAT, Change, parse
from tools.fixes.containment import CUT, PICKED, share, sources_of


def pairs(index: FixIndex, count: int, seed: int) -> Iterator[tuple[Fix, int]]:
    """Yield changes of modules, each with the number of a release."""
    drawing = random.Random(seed)
    modules = [fix for fix in index.fixes if any(file.startswith("vllm/") for file in fix.files)]
    while count:
        fix = drawing.choice(modules)
        release = fix.first + drawing.choice((-1, 0, 1))
        if 0 <= release < len(index.releases):
            count -= 1
            yield fix, release


def change_of(clone: Path, fix: Fix) -> Change:
    """Return a change with its lines."""
    command = ["git", "-C", str(clone), "log", "-1", "-p", "-U0", "--no-renames", "--date=short"]
    command += [f"--format={HEAD_FORMAT}", fix.commit, "--", "vllm/*.py"]
    output = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True)
    return next(parse(output.stdout.splitlines(keepends=True)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("clone", type=Path)
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=65)
    options = parser.parse_args()
    index, counts = fix_index(), Counter[str]()
    read = functools.lru_cache(1)(lambda release: _files(release, options.sources))
    drawn = pairs(index, options.count, options.seed)
    for fix, release in sorted(drawn, key=lambda pair: pair[1]):
        change, name = change_of(options.clone, fix), index.releases[release]
        own = {path: content for path, content in read(name).items() if path in change.functions}
        part, is_in = share(change, sources_of(own)), release >= fix.first
        outcome = "agree" if part is not None and (part >= PICKED) is is_in else "disagree"
        if part is None or CUT < part < PICKED:
            outcome = "undecided"
        counts[outcome] += 1
        if outcome != "agree":
            said = "in" if is_in else "not in"
            lines = "no lines" if part is None else f"{part:.0%} of the lines"
            print(f"{outcome}: {fix.name} {said} {name}, {lines}: {fix.title[:60]}", flush=True)
    print(dict(counts))


def _files(release: str, folder: Path | None) -> Mapping[str, bytes]:
    path = folder / f"{release}.zip" if folder else None
    if path is None or not path.exists():
        return read_release("vllm", release)
    with zipfile.ZipFile(path) as archive:
        return read_members(archive)


if __name__ == "__main__":
    main()
