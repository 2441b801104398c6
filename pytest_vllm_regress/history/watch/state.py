"""What ``vllm-regress watch`` has looked at: a small JSON file, which can be committed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.version import Version

from ...errors import UsageError
from ...util.documents import load_json
from ...util.files import write_atomically
from ...util.paths import writable_root
from ...util.validation import problems
from .releases import Release

SCHEMA_VERSION = 1
MAX_BYTES = 1024 * 1024


@dataclasses.dataclass(frozen=True)
class State:
    """``day`` of the last complete look (ISO 8601; empty: there was none), and releases that were
    dealt with, by package.

    ``unapplied``: releases on which something was not as expected, and whose edits were not
    written. They count as new on the next day, too.
    """

    day: str = ""
    seen: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, hash=False)
    unapplied: tuple[str, ...] = ()

    def is_due(self, today: str, *, write: bool) -> bool:
        """Return whether to look: at most once a day, unless the edits of today's look still have
        to be written."""
        return self.day != today or (write and bool(self.unapplied))

    def after(
        self, today: str, seen: Iterable[Release], unapplied: Iterable[Release] = ()
    ) -> State:
        """Return the state after a look in which the releases ``seen`` were dealt with."""
        versions = {package: {*map(Version, texts)} for package, texts in self.seen.items()}
        for release in seen:
            versions.setdefault(release.package, set()).add(release.version)
        ordered = {
            package: tuple(map(str, sorted(versions[package]))) for package in sorted(versions)
        }
        return State(today, ordered, tuple(map(str, unapplied)))


def read_state(path: Path) -> State:
    """Return the state in a file; an empty one if there is no file.

    Raises ``UsageError`` for an invalid file.
    """
    if not path.exists():
        return State()
    document = load_json(path, MAX_BYTES, what="a state of watch")
    if invalid := problems(document, "watch_schema.json"):
        raise UsageError("\n".join(f"{path}: {line}" for line in invalid))
    seen = {package: tuple(versions) for package, versions in document["seen"].items()}
    return State(document["day"], seen, tuple(document.get("unapplied", ())))


def write_state(path: Path, state: State) -> None:
    """Write the file atomically, with one line for each package."""
    lines = ",\n".join(
        f"  {json.dumps(package)}: {json.dumps(texts)}" for package, texts in state.seen.items()
    )
    unapplied = f',\n "unapplied": {json.dumps(state.unapplied)}' if state.unapplied else ""
    seen = f"{{\n{lines}\n }}" if lines else "{}"
    head = f'{{\n "schema": {SCHEMA_VERSION},\n "day": {json.dumps(state.day)},\n "seen": {seen}{unapplied}\n}}\n'
    write_atomically(path, head)


def default_place(directory: Path, case_ids: Iterable[str]) -> Path:
    """Return the file in the cache for this choice of cases."""
    key = repr((str(directory.absolute()), sorted(set(case_ids))))
    return writable_root() / "watch" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
