"""``uses`` reads any project in bounded time and memory, and leaves out what it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses import project
from pytest_vllm_regress.answers.uses.project import read_project
from pytest_vllm_regress.errors import UsageError

N = 3000
NAMES = f"from vllm import {','.join(f'a{number}' for number in range(N))}\n"
PRODUCTS = {
    "names and branches": NAMES + "if x:0\n" * N,
    "names and functions": NAMES + "def f():0\n" * N,
    "names and handlers": NAMES + "try:0\n" + "except A:0\n" * N,
    "bases and methods": f"from vllm import A\nclass C({'A,' * N}):\n" + " def a():0\n" * N,
    "keys and calls": f"from vllm import f\nK={{{','.join(f'{chr(39)}k{number}{chr(39)}:0' for number in range(N))}}}\n"
    + "f(**K)\n" * N,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_file_whose_parts_multiply_is_left_out(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PRODUCTS[name])
    (tmp_path / "b.py").write_text("import vllm\n")
    result = read_project(tmp_path, History(["0.8.0"]))
    assert [note for note in result.notes if note.startswith("left out: a.py: takes too much work")]
    assert [use.targets for use in result.uses] == [("vllm",)]


def test_the_work_of_all_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "MAX_WORK", 5_000_000)
    for number in range(3):
        (tmp_path / f"{number}.py").write_text(PRODUCTS["names and branches"])
    with pytest.raises(UsageError, match="takes too much work; give a part of it"):
        read_project(tmp_path, History(["0.8.0"]))


def test_uses_in_one_file_are_limited(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import vllm\n" + "".join(f"vllm.A{number}\n" for number in range(60_000))
    )
    with pytest.raises(UsageError, match="uses, or takes too much work; give a part of it"):
        read_project(tmp_path, History(["0.8.0"]))


@pytest.mark.parametrize(
    "text", ["x=f'" + "{vllm.a}" * 10_000 + "'\n", "import vllm\n" * 100_000], ids=["line", "file"]
)
def test_source_that_is_slow_to_parse_is_left_out(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(text)
    (note,) = read_project(tmp_path, History(["0.8.0"])).notes
    assert "has more than" in note


FIELDS = "import vllm\n" + 'f"{vllm.a}"\n' * (project.MAX_FIELDS + 1)


def test_memory_to_parse_many_fields_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "PARSE_MEMORY", 2**20)
    (tmp_path / "a.py").write_text(FIELDS)
    (note,) = read_project(tmp_path, History(["0.8.0"])).notes
    assert note.startswith("left out: a.py: cannot be parsed within 5 s and 1 MiB")


def test_time_to_parse_the_many_fields_of_all_files_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(FIELDS)
    assert read_project(tmp_path, History(["0.8.0"])).notes == ()
    monkeypatch.setattr(project, "MAX_PARSING", 1e-9)
    (note,) = read_project(tmp_path, History(["0.8.0"])).notes
    assert note.startswith("left out: b.py: cannot be parsed")


@pytest.mark.parametrize("file", ["requirements.txt", "Dockerfile", "pyproject.toml"])
def test_declared_ranges_are_limited(file: str, tmp_path: Path) -> None:
    lines = {
        "requirements.txt": "vllm==0.0.{}\n",
        "Dockerfile": "FROM vllm/vllm-openai:v0.0.{}\n",
        "pyproject.toml": "a{0} = ['vllm==0.0.{0}']\n",
    }
    (tmp_path / file).write_text("".join(lines[file].format(number) for number in range(1, 5001)))
    result = read_project(tmp_path, History(["0.8.0"]))
    assert [(declared.specifier, declared.place.line) for declared in result.declared[:2]] == [
        ("==0.0.1", 1),
        ("==0.0.2", 2),
    ]
    assert len(result.declared) == project.MAX_DECLARED
    assert "more than 1000 declared ranges" in result.notes[0]


def test_a_byte_order_mark_is_no_syntax_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbfimport vllm\n")
    assert read_project(tmp_path, History(["0.8.0"])).uses
