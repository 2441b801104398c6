"""Untrusted documents are parsed in bounded time and memory, and errors are short."""

from __future__ import annotations

import json
import os
import resource
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.util.documents import (
    MAX_KEY_PARTS,
    YamlSyntaxError,
    load_json,
    load_toml,
    parse_json,
    parse_toml,
    parse_yaml,
)
from pytest_vllm_regress.util.files import peek, private_folder, read_bounded, write_atomically

ANYTHING = "."
MANY = ".".join("a" * 30_000)
GOOD = [
    'a.b."c.d.e.f" = 1\n[x.y]\nz = [[1, 2], {k.l = "a.b.c"}]\n',
    'url = "https://a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r"  # a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r\n',
    'text = """\n' + "a.b.c " * 100 + '""""\nother = \'\'\'' + "x." * 100 + "'''\n",
]


@pytest.mark.parametrize("text", GOOD)
def test_valid_documents_are_parsed(text: str) -> None:
    assert parse_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        f"{MANY} = 1",
        f"[{MANY}]",
        f"x = {{{MANY} = 1}}",
        f'x = {{q = """a"""", {MANY} = 1}}',
        "\n".join(["x = ''", f"'a' . {MANY.replace('.', ' . ')} = 1"]),
        f'"a\\"b".{MANY} = 1',
    ],
)
def test_keys_with_many_parts_are_rejected_before_parsing(text: str) -> None:
    """``tomllib`` takes 4 GB for 64 KB of such a key."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=f"more than {MAX_KEY_PARTS} parts"):
        parse_toml(text)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.parametrize(
    "character", ['"', "'", '"\\', '\\"', "[", "{", ".", '"""\\', "'''", '"\\"']
)
def test_checking_bounds_is_linear(character: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match=ANYTHING):
        parse_toml("a = " + character * (500_000 // len(character)))
    assert time.process_time() - began < 5


@given(st.text(alphabet="abc.=\"'[]{}#\\\n ,1", max_size=80))
def test_only_excessive_nesting_is_rejected_that_tomllib_accepts(text: str) -> None:
    try:
        expected = tomllib.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=ANYTHING):
            parse_toml(text)
        return
    try:
        assert parse_toml(text) == expected
    except ValueError as error:
        assert text.count(".") >= MAX_KEY_PARTS, error


@pytest.mark.parametrize("text", ["[" * 100_000, "NaN", '{"a": Infinity}', "1" * 5000, "\x00", ""])
def test_invalid_json_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=ANYTHING) as caught:
        parse_json(text)
    assert len(str(caught.value)) < 200


def test_only_regular_files_within_the_limit_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(b"1" * 11)
    for name, words in (
        ("pipe", "not a regular file"),
        ("zero", "not a regular file"),
        ("", "not a regular file|Is a directory"),
        ("none", "No such file"),
        ("x" * 300, "too long"),
        ("large", "larger than 10 bytes, which is the limit of a test"),
    ):
        for load in (load_json, load_toml, read_bounded):
            with pytest.raises(UsageError, match=words):
                load(tmp_path / name, 10, what="a test")
        assert peek(tmp_path / name, 10) == ("1" * 10 if name == "large" else "")


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "new" / "file.json", json.dumps({}))
        os.umask(0o022)
        write_atomically(tmp_path / "new" / "other.json", json.dumps({}))
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "file.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new" / "other.json").stat().st_mode & 0o777 == 0o644
    assert private_folder(tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    with pytest.raises(UsageError, match="cannot be written"):
        write_atomically(tmp_path / ("x" * 300), "")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["file.json", "other.json"]


@pytest.mark.parametrize("text_type", [None, lambda text, line: f"{line}:{text}"])
def test_tags_of_python_are_refused(text_type: Callable[[str, int], str] | None) -> None:
    for text in ("!!python/object/apply:os.system [x]", "a: !!python/name:os.system"):
        with pytest.raises(ValueError, match="could not determine a constructor"):
            parse_yaml(text, text_type=text_type)


def test_texts_of_yaml_can_have_their_lines_and_errors_have_one() -> None:
    document = "a: b\nc: [1, true]\nd: |\n  e\n"
    (values,) = parse_yaml(document, text_type=lambda text, line: f"{line}:{text}")
    assert values == {"1:a": "1:b", "2:c": [1, True], "3:d": "3:e\n"}
    with pytest.raises(YamlSyntaxError) as caught:
        parse_yaml("a: b\nc: d: e\n")
    assert caught.value.line == 2
