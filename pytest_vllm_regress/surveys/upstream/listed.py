"""Upstream's tests that are known to fail on the simulated device, with what each of them needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...errors import UsageError
from ...util.documents import load_toml
from ...util.paths import DATA
from .triage import Listed, UpstreamOutcome

FILE = DATA / "upstream_listed.toml"
EVERY_TEST = "*"
"""Stands for all tests of a file that have no entry of their own."""
_MAX_FILE = 1024 * 1024
_NEEDS: Mapping[str, UpstreamOutcome] = {
    "meaning": UpstreamOutcome.MEANING,
    "model": UpstreamOutcome.MODEL,
    "gpu": UpstreamOutcome.KERNEL,
    "network": UpstreamOutcome.NETWORK,
    "fault": UpstreamOutcome.FAILED,
}
"""The outcome of a failed test by what its entry needs.

``fault`` is one of vLLM, of the test or of the simulated device: still a failure.
"""


def listed_tests(files: Iterable[str]) -> dict[str, Listed]:
    """Return the entries of these files, by ``file::test`` without parameters.

    Raises ``UsageError`` for a malformed entry.
    """
    document = load_toml(FILE, _MAX_FILE)
    return {
        f"{file}::{test}": _entry(file, test, value)
        for file in files
        for test, value in document.get(file, {}).items()
    }


def _entry(file: str, test: str, value: object) -> Listed:
    if isinstance(value, dict) and value.keys() == {"needs", "why"} and value["needs"] in _NEEDS:
        return Listed(_NEEDS[value["needs"]], str(value["why"]))
    raise UsageError(
        f'{FILE.name}: {file}: {test}: write {{ needs = "{"|".join(_NEEDS)}", why = "..." }}'
    )
