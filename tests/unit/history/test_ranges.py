"""Affected ranges are corrected from the verdicts on releases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from pytest_vllm_regress.cases.model import Range
from pytest_vllm_regress.history.corrections import corrected

RELEASES = ("0.8.4", "0.8.5", "0.9.0", "0.10.0", "0.33.0", "0.34.0", "0.35.0")
SPECIFIERS = (
    ">=0.8.5",
    "<0.9",
    ">=0.8.5,<0.33",
    "<0.8.5 || >=0.10,<0.34",
    "==0.9.0",
    "!=0.9",
    ">=0.40",
    ">=0.7",
)


def correct(
    specifier: str, shown: dict[str, bool], releases: tuple[str, ...] = RELEASES
) -> str | None:
    after = corrected(
        Range("vllm", specifier),
        [Version(text) for text in releases],
        {Version(v): s for v, s in shown.items()},
    )
    return after.specifier if after else None


@pytest.mark.parametrize(
    ("specifier", "shown", "after"),
    [
        (">=0.7,<0.8.5", {"0.35.0": True}, ">=0.7,<0.8.5 || >=0.35"),
        (">=0.7,<0.8.5", {"0.34.0": True, "0.35.0": True}, ">=0.7,<0.8.5 || >=0.34"),
        (">=0.7,<0.8.5", {"0.34.0": True, "0.35.0": False}, ">=0.7,<0.8.5 || >=0.34,<0.35"),
        ("<0.8.5 || >=0.10,<0.33", {"0.35.0": True}, "<0.8.5 || >=0.10,<0.33 || >=0.35"),
    ],
    ids=["newest", "two releases", "gone again", "a third time"],
)
def test_a_failure_that_comes_back_is_one_more_alternative(
    specifier: str, shown: dict[str, bool], after: str
) -> None:
    assert correct(specifier, shown) == after


@pytest.mark.parametrize(
    ("specifier", "shown", "after"),
    [
        (">=0.15", {"0.35.0": False}, ">=0.15,<0.35"),
        (">=0.15", {"0.34.0": False, "0.35.0": False}, ">=0.15,<0.34"),
        (">=0.15,<=0.40", {"0.35.0": False}, ">=0.15,<0.35"),
        ("<0.8.5 || >=0.10", {"0.34.0": True, "0.35.0": False}, "<0.8.5 || >=0.10,<0.35"),
        ("<0.8.5 || >=0.35", {"0.35.0": False}, "<0.8.5"),
        (">=0.15", {"0.10.0": False, "0.34.0": False, "0.35.0": True}, ">=0.15,!=0.34"),
    ],
    ids=[
        "newest",
        "two releases",
        "expected later",
        "last alternative",
        "empty alternative",
        "only one release",
    ],
)
def test_a_failure_that_is_fixed_ends_before_the_first_release_without_it(
    specifier: str, shown: dict[str, bool], after: str
) -> None:
    assert correct(specifier, shown) == after


def test_a_fix_in_an_old_branch_says_nothing_about_later_releases_that_were_not_run() -> None:
    assert correct(">=0.9", {"0.33.1": False}, (*RELEASES, "0.33.1")) == ">=0.9,!=0.33.1"


@pytest.mark.parametrize(
    ("specifier", "shown", "after"),
    [
        (">=0.7,<0.35", {"0.35.0": True}, ">=0.7"),
        ("<0.35", {"0.35.0": True}, ">=0"),
        (">=0.7,<0.34", {"0.34.0": True}, ">=0.7,<0.35"),
        (">=0.10", {"0.9.0": True}, ">=0.9"),
    ],
    ids=["newest", "no lower bound", "until the next", "earlier"],
)
def test_a_range_next_to_the_release_is_extended(
    specifier: str, shown: dict[str, bool], after: str
) -> None:
    assert correct(specifier, shown) == after


def test_nothing_is_left_of_a_range_that_no_release_confirms() -> None:
    assert correct(">=0.35", {"0.35.0": False}) is None


@given(
    st.sampled_from(SPECIFIERS),
    st.dictionaries(st.sampled_from(RELEASES), st.booleans(), min_size=1),
)
def test_the_corrected_range_agrees_with_every_release(
    specifier: str, shown: dict[str, bool]
) -> None:
    text = correct(specifier, shown)
    if text is None:
        assert not any(shown.values())
    else:
        assert all(
            Range("vllm", text).contains(version) is value for version, value in shown.items()
        )
