"""Which releases are new, what runs on them, and what is remembered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.history.corrections import WatchedRelease
from pytest_vllm_regress.history.watch import (
    SeenReleases,
    new_releases,
    plan,
    watched_packages,
)
from tests.helpers.cases import CaseFile

NEWEST = Version("0.34.0")


def release(package: str, version: str) -> WatchedRelease:
    return WatchedRelease(package, Version(version))


@pytest.fixture
def cases(tmp_path: Path) -> tuple[Case, ...]:
    return (
        CaseFile("engine", affected="<0.9", old=("vllm-0.8.4",), new=("vllm-0.9.0",)).write(
            tmp_path
        ),
        CaseFile("library", affected={"xgrammar": "<1"}, old=("vllm-0.8.5",), new=()).write(
            tmp_path
        ),
        CaseFile(
            "alone",
            affected={"xgrammar": ">=0.1.7"},
            old=("xgrammar-0.1.27+torch==2.13.0",),
            new=(),
            devices=("none", "sim"),
        ).write(tmp_path),
    )


def test_only_packages_that_a_case_is_about_are_watched(cases: tuple[Case, ...]) -> None:
    assert watched_packages(cases) == ("vllm", "xgrammar")
    assert watched_packages(cases[:1]) == ("vllm",)


def test_a_release_is_new_unless_it_is_known_or_was_seen() -> None:
    listed = {
        "vllm": [Version(text) for text in ("0.32.0", "0.33.0", "0.33.1", "0.34.0")],
        "xgrammar": [Version("0.3")],
    }
    news = new_releases(listed, {"vllm": [Version("0.32.0"), Version("0.33.0")]}, ["vllm 0.33.1"])
    assert list(map(str, news)) == ["vllm 0.34.0", "xgrammar 0.3"]


def test_all_cases_run_on_a_new_vllm(cases: tuple[Case, ...]) -> None:
    (look,) = plan([release("vllm", "0.34.0")], cases, NEWEST)
    assert (look.environment, look.cases) == ("vllm-0.34.0", cases)
    assert look.batch.roles == {}


def test_cases_about_a_new_library_run_in_the_newest_vllm_or_where_they_need_none_without_it(
    cases: tuple[Case, ...],
) -> None:
    looks = plan([release("xgrammar", "0.2.9")], cases, NEWEST)
    assert [(look.environment, [case.id for case in look.cases]) for look in looks] == [
        ("vllm-0.34.0+xgrammar==0.2.9", ["library"]),
        ("xgrammar-0.2.9+torch==2.13.0", ["alone"]),
    ]


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Callable[[], SeenReleases]]:
    """Return what was seen, as the next run of the command finds it."""
    with contextlib.ExitStack() as runs:

        def next_run() -> SeenReleases:
            runs.close()
            return runs.enter_context(contextlib.closing(SeenReleases(tmp_path / "watch.jsonl")))

        yield next_run


def test_what_was_seen_survives_and_grows(seen: Callable[[], SeenReleases]) -> None:
    first = seen()
    assert (first.last_day, first.names, first.unapplied) == ("", set(), ())
    first.add_look("2026-11-24", [release("vllm", "0.34.0")], [release("xgrammar", "0.2.9")])
    second = seen()
    assert second.last_day == "2026-11-24"
    assert second.names == {"vllm 0.34.0"}
    assert second.unapplied == ("xgrammar 0.2.9",)
    second.add_look("2026-11-25", [release("vllm", "0.33.1"), release("xgrammar", "0.2.9")])
    assert seen().names == {"vllm 0.34.0", "vllm 0.33.1", "xgrammar 0.2.9"}
    assert seen().unapplied == ()


def test_a_look_with_a_failed_build_is_not_the_last_of_the_day(
    seen: Callable[[], SeenReleases],
) -> None:
    seen().add_look("2026-11-25", [], complete=False)
    assert seen().is_due("2026-11-25", write=False)


def test_one_run_at_a_time(seen: Callable[[], SeenReleases], tmp_path: Path) -> None:
    seen()
    with pytest.raises(UsageError, match="in use by process"):
        SeenReleases(tmp_path / "watch.jsonl")


@pytest.mark.parametrize(
    ("today", "write", "unapplied", "due"),
    [
        ("2026-11-24", False, (), False),
        ("2026-11-24", True, (), False),
        ("2026-11-24", False, ("0.34.0",), False),
        ("2026-11-24", True, ("0.34.0",), True),
        ("2026-11-25", False, (), True),
    ],
    ids=["same day", "nothing to write", "not asked to write", "edits are left", "next day"],
)
def test_one_look_a_day_unless_edits_are_left_to_write(
    seen: Callable[[], SeenReleases], today: str, write: bool, unapplied: tuple[str, ...], due: bool
) -> None:
    seen().add_look("2026-11-24", [], [release("vllm", version) for version in unapplied])
    assert seen().is_due(today, write=write) is due


@pytest.mark.parametrize(
    "content", ["[]\n", '{"schema": 1, "day": "", "seen": {}}\n', "{\n"], ids=str.strip
)
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "watch.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match="not what watch has seen") as refused:
        SeenReleases(path)
    assert str(path) in str(refused.value)
