"""The page that says how the parsers of each release answered, and ``python -m tools.parser_table
FOLDER...``, which takes what campaigns came to (folders written by ``vllm-regress fuzz parsers
--out FOLDER``) into docs/records/parsers.json.

    python -m tools.parser_table /tmp/0.11.2 /tmp/0.33.0
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from pytest_vllm_regress.fuzz.campaign import JOURNAL
from pytest_vllm_regress.fuzz.parsers.parser_oracle import WHOLE
from pytest_vllm_regress.fuzz.parsers.parser_question import CutKind
from pytest_vllm_regress.util.report import Markup, Table

from . import page as pages

DOCS = Path(__file__).parents[1] / "docs"
RECORD = DOCS / "records" / "parsers.json"
LETTERS = dict(zip((WHOLE, *CutKind), "wctsmo", strict=True))


def add_campaign(record: dict[str, Any], journal: Iterable[str]) -> None:
    """Add what a campaign came to: for each parser the number of answers, and of wrong ones by way
    and kind. A campaign against some parsers replaces what is recorded of these alone."""
    head, *steps = map(json.loads, journal)
    key = head["key"]
    parsers: dict[str, Any] = {}
    for step in (step for line in steps for step in line.values()):
        label = step["label"].partition(", format")[0]  # the formats of a parser count as one
        entry = parsers.setdefault(label, {"asked": 0, "wrong": {}})
        entry["asked"] += step["asked"]
        for way, kind, count in (
            (*name.split(": ", 1), count) for name, count in step["counts"].items()
        ):
            kinds = entry["wrong"].setdefault(way, {})
            kinds[kind] = kinds.get(kind, 0) + count
    earlier = record.get(key["version"], {}).get("parsers", {}) if key["parsers"] else {}
    record[key["version"]] = {"seed": key["seed"], "parsers": {**earlier, **parsers}}


def cell(entry: Mapping[str, Any] | None) -> str:
    """Return a cell of the table."""
    if entry is None:
        return ""
    wrong = {way: sum(kinds.values()) for way, kinds in entry["wrong"].items()}
    if not wrong:
        return "sound"
    letters = "".join(letter if way in wrong else "·" for way, letter in LETTERS.items())
    return f"`{letters}` ({100 * max(wrong.values()) / entry['asked']:.0f} %)"


def page() -> str:
    """Return the page."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    releases = sorted(record, key=Version)
    parsers = {release: record[release]["parsers"] for release in releases}
    names = sorted(
        {name for entries in parsers.values() for name in entries},
        key=lambda name: ("(" in name, name),
    )
    rows = [
        [Markup(name), *(Markup(cell(parsers[release].get(name))) for release in releases)]
        for name in names
    ]
    sound = [
        f"{release}: {sum(not entry['wrong'] for entry in entries.values())} of {len(entries)}"
        for release, entries in parsers.items()
    ]
    table = Table(("parser", *releases), rows)
    return pages.render("parsers", parsers=table, sound=", ".join(sound))


def main() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    for folder in map(Path, sys.argv[1:]):
        add_campaign(record, (folder / JOURNAL).read_text(encoding="utf-8").splitlines())
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
