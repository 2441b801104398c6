"""Write the index of vLLM's fixes, data/fixes.zip: ``python -m tools.fixes CLONE [--branch main]
[--sources DIR] [--all]``.

CLONE is a git directory with the history of vLLM. Adds the commits and releases that the file does
not have yet; with --all it makes the file again. The releases are those of data/releases.json, read
from their wheels on the user's package index, or from DIR/RELEASE.zip where that exists.
"""

from __future__ import annotations

import argparse
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.version import Version

from pytest_vllm_regress.answers.fixes.index import FILE, FixIndex
from pytest_vllm_regress.environments.releases import known_releases
from pytest_vllm_regress.environments.wheels import read_members, read_release

from .build import grown

FIRST = Version("0.6.6")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.fixes")
    parser.add_argument("clone", type=Path)
    parser.add_argument("--branch", default="main")
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    before = FixIndex() if options.all or not FILE.exists() else FixIndex.load()
    start = time.monotonic()
    known = [str(version) for version in known_releases("vllm") if version >= FIRST]
    new = [release for release in known if release not in before.releases]
    read = [*before.releases[-1:], *new] if new else []
    index = grown(before, options.clone, options.branch, _sources(read, options.sources))
    FILE.write_bytes(index.content())
    print(
        f"{FILE}: {len(index.fixes)} changes until {index.until_date}, {FILE.stat().st_size} bytes, "
        f"{time.monotonic() - start:.0f} s"
    )


def _sources(
    releases: Sequence[str], folder: Path | None
) -> Iterator[tuple[str, dict[str, bytes]]]:
    for release in releases:
        path = folder / f"{release}.zip" if folder else None
        if path is not None and path.exists():
            with zipfile.ZipFile(path) as archive:
                yield release, read_members(archive)
        else:
            yield release, read_release("vllm", release)
        print(f"{release} read", flush=True)


if __name__ == "__main__":
    main()
