"""ARCHITECTURE.md is short and names packages and modules that exist."""

from __future__ import annotations

import re

from tests.helpers import ROOT
from tests.unit.test_imports import FLOORS, PACKAGE

ROW = re.compile(r"^\| `([a-z_]+)/` \| .+ \| `([a-z_/]+\.py)` \|$", re.MULTILINE)
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_it_stays_short() -> None:
    assert len(TEXT.split()) <= 960


def test_the_packages_stand_in_import_order() -> None:
    rows = ROW.findall(TEXT)
    assert [folder for folder, _ in rows] == ["target_site", "schemas", *FLOORS]
    assert [f"{a}/{b}" for a, b in rows if not (PACKAGE / a / b).is_file()] == []


def test_every_path_exists() -> None:
    target = PACKAGE / "target_site" / "vllm_regress_target"
    paths = re.findall(r"`((?:target_site/…/)?[a-z_]+(?:/[a-z_]+)*/?(?:\.py)?)`", ROW.sub("", TEXT))
    places = [path for path in paths if "/" in path or path.endswith(".py")]
    inside = [PACKAGE / name for name in ("engines", "answers", "output", "cases")]
    roots = [PACKAGE, ROOT, target, ROOT / "tests", *inside]
    assert len(places) > 30
    missing = [
        path
        for path in places
        if not any((root / path.removeprefix("target_site/…/")).exists() for root in roots)
    ]
    assert missing == []
