"""Which releases are new, what runs on them, and what is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.history.watch.releases import Release, new_releases, plan, watched_packages
from pytest_vllm_regress.history.watch.state import State, read_state, write_state
from tests.helpers.cases import CaseFile

NEWEST = Version("0.34.0")


def release(package: str, version: str) -> Release:
    return Release(package, Version(version))


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
    news = new_releases(
        listed, {"vllm": [Version("0.32.0"), Version("0.33.0")]}, {"vllm": ["0.33.1"]}
    )
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


def test_the_state_survives_its_file_and_grows_in_order(tmp_path: Path) -> None:
    path = tmp_path / "watch.json"
    assert read_state(path) == State()
    first = State().after("2026-11-24", [release("vllm", "0.34.0")], [release("xgrammar", "0.2.9")])
    write_state(path, first)
    assert read_state(path) == first
    second = first.after("2026-11-25", [release("vllm", "0.33.1"), release("xgrammar", "0.2.9")])
    write_state(path, second)
    assert read_state(path).seen == {"vllm": ("0.33.1", "0.34.0"), "xgrammar": ("0.2.9",)}
    assert read_state(path).unapplied == ()


@pytest.mark.parametrize(
    ("today", "write", "unapplied", "due"),
    [
        ("2026-11-24", False, (), False),
        ("2026-11-24", True, (), False),
        ("2026-11-24", False, ("vllm 0.34.0",), False),
        ("2026-11-24", True, ("vllm 0.34.0",), True),
        ("2026-11-25", False, (), True),
    ],
    ids=["same day", "nothing to write", "not asked to write", "edits are left", "next day"],
)
def test_one_look_a_day_unless_edits_are_left_to_write(
    today: str, write: bool, unapplied: tuple[str, ...], due: bool
) -> None:
    assert State("2026-11-24", {}, unapplied).is_due(today, write=write) is due


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "allowed is a table"),
        ('{"schema": 2, "day": "", "seen": {}}', "schema"),
        ('{"schema": 1, "day": "today", "seen": {}}', "a day such as 2026-11-24"),
        (
            '{"schema": 1, "day": "", "seen": {"vllm": ["new\\u001b"]}}',
            "a stable release such as 0.34.0",
        ),
        ("{", "not valid JSON"),
    ],
)
def test_an_invalid_state_is_refused_with_what_is_allowed(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "watch.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=words) as refused:
        read_state(path)
    assert str(path) in str(refused.value)
