"""Files that a test reads although no proof covers them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.plugin.reads import watched

TEST = """
import os
import shared
from pathlib import Path

def read(name):
    return (Path(__file__).parents[2] / name).read_text()

def low_level(name):
    os.close(os.open(Path(__file__).parents[2] / name, os.O_RDONLY))

def write(name):
    (Path(__file__).parents[2] / name).write_text("x")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the test module of a case, which imports a module beside the case's folder."""
    folder = tmp_path / "cases" / "demo"
    folder.mkdir(parents=True)
    (tmp_path / "cases" / "shared.py").write_text("")
    (folder / "test_demo.py").write_text(TEST)
    for name in ("cases/demo/own.json", "outside.json", ".hidden.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.syspath_prepend(str(tmp_path / "cases"))
    spec = importlib.util.spec_from_file_location("test_demo", folder / "test_demo.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("call", "name", "found"),
    [
        ("read", "outside.json", ["outside.json"]),
        ("low_level", "outside.json", ["outside.json"]),
        ("write", "outside.json", []),
        ("read", "cases/demo/own.json", []),
        ("read", "cases/shared.py", []),
        ("read", ".hidden.json", []),
    ],
)
def test_what_a_test_reads_outside_its_folder_is_found(
    module: Any, call: str, name: str, found: list[str]
) -> None:
    with watched(Path(module.__file__).parent) as uncovered:
        getattr(module, call)(name)
    assert uncovered == found
    getattr(module, call)(name)
    assert uncovered == found


def test_what_the_harness_reads_is_not_the_tests(module: Any, tmp_path: Path) -> None:
    with watched(Path(module.__file__).parent) as uncovered:
        (tmp_path / "outside.json").read_text()
    assert uncovered == []
