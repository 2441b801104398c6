"""Keyed entries in a file: resumed after any interruption, kept apart from those of another run."""

from __future__ import annotations

import dataclasses
import multiprocessing
from pathlib import Path

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.util.store import Store


@dataclasses.dataclass(frozen=True)
class Entry:
    number: int
    words: tuple[str, ...] = ()


def store(path: Path, key: object = "k") -> Store[Entry]:
    return Store(path, Entry, what="progress of a test", key=key, advice="give --fresh")


def test_entries_are_there_again_in_their_order(tmp_path: Path) -> None:
    first = store(tmp_path / "s")
    first.add("b", Entry(1))
    first.add("a", Entry(2, ("x\n", "é")))
    first.add("b", Entry(3))
    again = store(tmp_path / "s")
    assert dict(again.entries) == {"b": Entry(3), "a": Entry(2, ("x\n", "é"))}
    assert list(again) == ["b", "a"]
    assert "a" in again and len(again) == 2 and again["a"].number == 2


@pytest.mark.parametrize("left", range(1, 60))
def test_a_line_that_was_cut_off_is_ignored_and_written_over(tmp_path: Path, left: int) -> None:
    path = tmp_path / "s"
    first = store(path)
    first.add("a", Entry(1))
    whole = path.read_bytes()
    first.add("b", Entry(2, ("x" * 60,)))
    path.write_bytes(path.read_bytes()[: len(whole) + left])
    again = store(path)
    assert list(again) == ["a"]
    again.add("c", Entry(3))
    assert dict(store(path).entries) == {"a": Entry(1), "c": Entry(3)}


def test_a_first_line_that_was_cut_off_is_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "s").write_text('{"store": "prog')
    fresh = store(tmp_path / "s")
    assert len(fresh) == 0
    fresh.add("a", Entry(1))
    assert list(store(tmp_path / "s")) == ["a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]\n", "not progress of a test: give --fresh"),
        ('{"store": "another", "key": "k"}\n', "not progress of a test: give --fresh"),
        ("nonsense\n", "not progress of a test .*give --fresh"),
        (
            '{"store": "progress of a test", "key": "k"}\n{"a": {"number": "1"}}\n',
            r"s, a: number = '1'",
        ),
        (
            '{"store": "progress of a test", "key": "k"}\n[]\n',
            "not progress of a test .*give --fresh",
        ),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "s").write_text(content)
    with pytest.raises(UsageError, match=message):
        store(tmp_path / "s")


def test_the_file_of_another_key_is_refused(tmp_path: Path) -> None:
    store(tmp_path / "s", ["a", 1]).add("x", Entry(1))
    assert list(store(tmp_path / "s", ("a", 1))) == ["x"]
    with pytest.raises(UsageError, match=r"for something else \(\['a', 1\]\): give --fresh"):
        store(tmp_path / "s", ["a", 2])


def test_a_rewritten_file_has_one_line_for_each_entry(tmp_path: Path) -> None:
    record = store(tmp_path / "s")
    record.add("b", Entry(1))
    record.rewrite({"a": Entry(2), **record.entries})
    record.add("c", Entry(3))
    lines = (tmp_path / "s").read_text().splitlines()
    assert lines[1:] == [
        '{"a": {"number": 2, "words": []}}',
        '{"b": {"number": 1, "words": []}}',
        '{"c": {"number": 3, "words": []}}',
    ]


def test_a_removed_file_can_be_begun_again(tmp_path: Path) -> None:
    first = store(tmp_path / "s")
    first.add("a", Entry(1))
    first.remove()
    assert not (tmp_path / "s").exists() and len(first) == 0
    first.add("b", Entry(2))
    assert list(store(tmp_path / "s")) == ["b"]


def _refused(path: Path) -> bool:
    try:
        store(path).lock()
    except UsageError as error:
        return "in use by process" in str(error)
    return False


def test_a_second_run_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = store(path)
    first.lock()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_refused, (path,))
        first.close()
        assert not pool.apply(_refused, (path,))


def test_a_lock_shows_what_a_run_added_meanwhile(tmp_path: Path) -> None:
    late = store(tmp_path / "s")
    store(tmp_path / "s").add("a", Entry(1))
    late.lock()
    assert list(late) == ["a"]
    late.close()
