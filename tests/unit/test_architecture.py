"""ARCHITECTURE.md names exactly the folders that exist."""

from __future__ import annotations

import re

import pytest

from tests.helpers import ROOT
from tests.unit.test_imports import FLOORS, PACKAGE, imports

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([a-z_]+)/` \| (.+) \| (.+) \| `([a-z_/]+\.py)` \|$", re.MULTILINE)
TREE = {folder: (owns, imported, begin) for folder, owns, imported, begin in ROW.findall(TEXT)}
PLACE = re.compile(r"`([a-z_]+)/` \(([^)]+)\)")
QUESTIONS = re.findall(
    r"^\| (?!symptom|---)(.+) \| (.+) \|$", TEXT.partition("## Which folder?")[2].partition("\n## ")[0], re.MULTILINE
)


def test_the_tree_lists_every_folder_in_import_order() -> None:
    assert list(TREE) == ["target_site", "schemas", *FLOORS]


@pytest.mark.parametrize("folder", TREE)
def test_a_folder_imports_what_the_tree_says(folder: str) -> None:
    _, imported, begin = TREE[folder]
    assert (PACKAGE / folder / begin).is_file()
    used = {name.split(".")[1] for path in (PACKAGE / folder).rglob("*.py") for name in imports(path) if "." in name}
    assert imported == (", ".join(other for other in TREE if other in used - {folder}) or "nothing")


def test_ten_symptoms_lead_to_existing_folders_and_files() -> None:
    assert len(QUESTIONS) == 10
    for symptom, answer in QUESTIONS:
        places = PLACE.findall(answer)
        assert places, symptom
        for folder, words in places:
            for name in re.findall(r"`([a-z_]+\.py)`", words):
                assert list((PACKAGE / folder).rglob(name)), f"{symptom}: {folder}/{name}"


def test_folders_next_to_the_package_are_named() -> None:
    section = TEXT[TEXT.index("Beside the package:") : TEXT.index("## Which folder?")]
    for name in re.findall(r"`([a-z]+)/`", section.partition("in the same order")[0]):
        assert (ROOT / name).is_dir()
    kinds = re.findall(r"`([a-z]+)/`", section.partition("in the same order")[2])
    assert {path.name for path in (ROOT / "tests").iterdir() if (path / "__init__.py").exists()} == set(kinds)


@pytest.mark.parametrize(
    ("heading", "most"),
    [("From a marker to the arguments of `vllm serve`", 12), ("From an observed failure to the page", 14)],
)
def test_the_ways_through_the_code_name_existing_modules(heading: str, most: int) -> None:
    modules = re.findall(
        r"^\d+\. `([\w/]+\.py)`", TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert 5 < len(modules) <= most
    assert [module for module in modules if not (PACKAGE / module).is_file()] == []
