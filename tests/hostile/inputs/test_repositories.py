"""Commits with dates and subjects that git accepts and nobody writes."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path

import pytest

from pytest_vllm_regress.environments.git import Repository
from tests.helpers.repositories import RepositoryBuilder

EPOCH, LATEST = datetime.date(1970, 1, 1), datetime.date(9999, 1, 1)
DATES = {
    "99999999999999 +0000": LATEST,
    "253402300799 -2359": LATEST,
    "253402300799 +2359": LATEST,
    "18446744073709551615 +0000": None,
    "9223372036854775807 +0000": None,
    "67767976233532799 +0000": LATEST,
    "-1 +0000": None,
    "abc": EPOCH,
    "": EPOCH,
    "0 -1200": EPOCH,
    "1740830400 +9999": datetime.date(2025, 3, 1),
    "1740830400 -9999999": datetime.date(2025, 3, 1),
    "1740830400 +2400": datetime.date(2025, 3, 1),
    "1740830400 +0530": datetime.date(2025, 3, 1),
}
"""Dates in commits, and the day that they are read as; None for any."""


def raw_commit(builder: RepositoryBuilder, date: str, subject: bytes) -> str:
    """Write a commit without git's checks, on top of HEAD, and return its id."""
    head, tree = builder.git("rev-parse", "HEAD"), builder.git("rev-parse", "HEAD^{tree}")
    people = f"author A <a@b.invalid> {date}\ncommitter C <c@d.invalid> {date}\n"
    content = f"tree {tree}\nparent {head}\n{people}\n".encode() + subject + b"\n"
    done = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin", "--literally"],
        cwd=builder.place,
        input=content,
        capture_output=True,
        check=True,
    )
    commit = done.stdout.decode().strip()
    builder.git("update-ref", "refs/heads/main", commit)
    return commit


@pytest.mark.parametrize("date", DATES)
def test_commits_of_any_date_are_read(tmp_path: Path, date: str) -> None:
    builder = RepositoryBuilder(tmp_path / "clone")
    first = builder.commit("first", {"a": "1"})
    strange = raw_commit(builder, date, b"strange")
    last = builder.commit("last", {"b": "1"})
    repository = Repository.at(builder.place)
    commits = repository.between(first, last)
    assert [commit.id for commit in commits] == [strange, last]
    assert commits[1].touched == ("b",)
    commit = repository.commit(strange)
    assert EPOCH <= commit.day <= LATEST
    assert DATES[date] in (None, commit.day)
    assert commit.authored.date() and commit.authored.isoformat()
    assert sorted([commit, *commits], key=lambda commit: commit.committed)


@pytest.mark.parametrize(
    "subject",
    [b"a\x1eb\x1fc", b"\x1e" * 9, b"\x1f", b"\xff\xfe", b"", b"%x1e%H", "\u2028\u0085".encode()],
)
def test_a_subject_may_contain_any_character(tmp_path: Path, subject: bytes) -> None:
    builder = RepositoryBuilder(tmp_path / "clone")
    first = builder.commit("first", {"a\x1eb\x1f": "1"})
    strange = raw_commit(builder, "1740830400 +0000", subject)
    last = builder.commit("last", {"a\x1eb\x1f": "2"})
    commits = Repository.at(builder.place).between(first, last)
    assert [commit.id for commit in commits] == [strange, last]
    assert commits[0].subject.encode("utf-8", "surrogateescape") == subject
    assert commits[1].touched == ("a\x1eb\x1f",)
    json.dumps(commits[0].subject)
