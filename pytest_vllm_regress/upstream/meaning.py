"""The list of upstream's tests that assert what a trained model says."""

from __future__ import annotations

from collections.abc import Iterable

from ..util.documents import load_toml
from ..util.paths import DATA

FILE = DATA / "upstream_meaning.toml"
_MAX_FILE = 1024 * 1024


def listed_tests(files: Iterable[str]) -> tuple[str, ...]:
    """Return the listed tests of these files, as ``file::test`` without parameters."""
    document = load_toml(FILE, _MAX_FILE)
    return tuple(f"{file}::{test}" for file in files for test in document.get(file, {}))
