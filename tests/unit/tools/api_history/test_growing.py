"""Changes by release: appending, the file, moves, and what the package ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.api_history.store import (
    FILE,
    MOVES,
    Table,
    definition_at,
    history,
    intervals,
)
from pytest_vllm_regress.environments.releases import known_releases
from tests.unit.answers.api_history.releases import history_of, wheel
from tools.api_history.growing import GrowingHistory, append
from tools.api_history.snapshot import read_snapshot

MAX_BYTES = 2 * 1024 * 1024


def test_a_name_can_come_change_go_and_return() -> None:
    table: Table = {}
    for release, definitions in enumerate([{}, {"a": "1"}, {"a": "1"}, {"a": "2"}, {}, {"a": "2"}]):
        append(table, release, definitions)
    assert table == {"a": [1, "1", 3, "2", 4, None, 5, "2"]}
    assert [definition_at(table["a"], n) for n in range(6)] == [None, "1", "1", "2", None, "2"]
    assert list(intervals(table["a"], 6)) == [(1, 3, "1"), (3, 4, "2"), (5, 6, "2")]


def test_a_history_survives_its_file_and_can_be_extended(tmp_path: Path) -> None:
    files = [{"a.py": "def f(x): ..."}, {"a.py": "def f(x, y=1): ..."}, {"b/c.py": "class K: ..."}]
    whole = history_of({str(number): sources for number, sources in enumerate(files)})
    path = tmp_path / "history.zip"
    path.write_bytes(history_of({"0": files[0], "1": files[1]}).content())
    extended = GrowingHistory.load(path)
    extended.append("2", read_snapshot(wheel({"__init__.py": "", **files[2]})))
    assert extended.content() == whole.content()
    assert extended.symbols("vllm.a") == {"f": [0, "def(x)", 1, "def(x, y=1)", 2, None]}
    assert extended.symbols_at(2) == {"vllm": {}, "vllm.b": {}, "vllm.b.c": {"K": "class()"}}
    assert extended.symbols("vllm.unknown.module") == {}


def test_star_imports_and_environment_variables_are_names() -> None:
    sample = history_of(
        {
            "1": {
                "a.py": "from vllm.b import *",
                "b.py": "def shown(): ...\ndef _hidden(): ...\nfrom vllm.c import *",
                "c.py": "def deep(): ...",
                "envs.py": "environment_variables = {'VLLM_X': lambda: os.getenv('VLLM_X', '1')}",
            }
        }
    )
    assert set(sample.symbols("vllm.a")) == {"shown", "deep"}
    assert "VLLM_X" in sample.symbols("vllm.envs")
    assert sample.table("environment")["VLLM_X"] == [0, "'1'"]


def test_variables_that_other_modules_read_are_no_names_of_envs() -> None:
    files = {
        "envs.py": "environment_variables = {'VLLM_X': lambda: os.getenv('VLLM_X', '1')}",
        "a.py": "import os\nON = os.getenv('VLLM_A', '0')\nos.environ['VLLM_SET'] = '1'",
        "b.py": "from os import getenv\nif 'VLLM_B' in os.environ: x = os.environ['VLLM_C']\ngetenv(\n  'OTHER')\nKEY = 'VLLM_D'\ngetenv(KEY)",
    }
    sample = history_of({"1": files})
    variables = {name: timeline[1] for name, timeline in sample.table("environment").items()}
    assert variables == {"VLLM_X": "'1'", "VLLM_A": "'0'", "VLLM_B": "", "VLLM_C": "", "VLLM_D": ""}
    assert "VLLM_A" not in sample.symbols("vllm.envs")


LAZY = {
    "a/__init__.py": "def __getattr__(n):\n    if n == 'f': return 1\n    raise AttributeError",
    "a/b.py": "def f(): ...",
}


@pytest.mark.parametrize(
    ("before", "after", "key", "place"),
    [
        ({"a.py": "def f(): ..."}, {"b.py": "def f(): ..."}, "vllm.a:f", "vllm.b:f"),
        ({"a.py": "class K: ...", "b.py": ""}, {"a.py": "", "b.py": "class K: ..."}, "vllm.a:K", "vllm.b:K"),
        ({"a.py": "from vllm.b import f", "b.py": "def f(): ..."}, {"a.py": "", "b.py": "def f(): ..."}, "vllm.a:f", "vllm.b:f"),
        (
            {"a.py": "class OldParams:\n    x: int\n    y: int\n    z: int"},
            {"a.py": "class NewParams:\n    x: int\n    y: int\n    z: int\n    w: int"},
            "vllm.a:OldParams",
            "vllm.a:NewParams",
        ),
        ({"a.py": "class NewParams: ...\nclass OldParams(NewParams): ..."}, {"a.py": "class NewParams: ..."}, "vllm.a:OldParams", "vllm.a:NewParams"),
        (LAZY, {"a/__init__.py": "", "a/b.py": "def f(): ..."}, "vllm.a:f", "vllm.a.b:f"),
        ({"a/__init__.py": "f = 1", "b.py": "def f(): ..."}, {"a/__init__.py": "", "b.py": "def f(): ..."}, "vllm.a:f", None),
        ({"a.py": "class Gone:\n    x: int\n    y: int\n    z: int"}, {"a.py": "class Other:\n    q: int"}, "vllm.a:Gone", None),
    ],
)  # fmt: skip
def test_a_symbol_that_moved_is_found(
    before: dict[str, str], after: dict[str, str], key: str, place: str | None
) -> None:
    sample = history_of({"1": before, "2": after, "3": after})
    timeline = sample.table(MOVES).get(key)
    assert (timeline and definition_at(timeline, 2)) == place


def test_a_symbol_that_returns_has_not_moved() -> None:
    first, second = {"a.py": "def f(): ...", "b.py": ""}, {"a.py": "", "b.py": "def f(): ..."}
    sample = history_of({"1": first, "2": second, "3": first})
    assert sample.table(MOVES)["vllm.a:f"] == [1, "vllm.b:f", 2, None]


def test_the_shipped_history_has_all_releases_and_is_small() -> None:
    known = [str(version) for version in known_releases("vllm")]
    assert history().releases == known[known.index("0.7.0") :], "run `python -m tools.api_history`"
    assert FILE.stat().st_size <= MAX_BYTES
