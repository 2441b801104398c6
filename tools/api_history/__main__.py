"""Write the history of vLLM's API from the wheels on the user's package index: ``python -m
tools.api_history [--all]``.

Adds the releases that the file does not have yet; with --all it makes the file again from the first
release on. The releases are those of data/releases.json (``python -m tools.releases``).
``dialect/known.json`` is derived from the history and written, too.
"""

from __future__ import annotations

import json
import sys
import time

from packaging.version import Version

from pytest_vllm_regress.answers.api_history.store import FILE
from pytest_vllm_regress.environments.releases import known_releases
from pytest_vllm_regress.environments.wheels import read_release
from pytest_vllm_regress.target_site.vllm_regress_target.dialect.known import FILE as KNOWN

from . import known_arguments
from .growing import GrowingHistory
from .snapshot import read_snapshot

FIRST = Version("0.7.0")


def main(again: bool) -> None:
    history = GrowingHistory() if again else GrowingHistory.load()
    for release in (str(version) for version in known_releases("vllm") if version >= FIRST):
        if release not in history.releases:
            start = time.monotonic()
            history.append(release, read_snapshot(read_release("vllm", release)))
            print(f"{release}: {time.monotonic() - start:.0f} s", flush=True)
    FILE.write_bytes(history.content())
    KNOWN.write_text(
        known_arguments.text(known_arguments.known(history, json.loads(KNOWN.read_text())))
    )
    print(f"{FILE}: {len(history.releases)} releases, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main("--all" in sys.argv[1:])
