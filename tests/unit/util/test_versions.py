"""Versions and requirements in untrusted text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.answers.audit.package_lists import parse_list
from pytest_vllm_regress.cases.model import Range
from pytest_vllm_regress.environments.releases import parse
from pytest_vllm_regress.errors import BuildError
from pytest_vllm_regress.util.versions import (
    fewest,
    is_version,
    marker_holds,
    requirement_of,
    specifiers_of,
    suspects_first,
)

DIGITS = "9" * 5000
DEEP = "(" * 2000 + "os_name == 'a'" + ")" * 2000


def test_a_version_with_too_many_digits_is_invalid() -> None:
    assert not is_version(f"1.{DIGITS}")
    assert specifiers_of(f"=={DIGITS}") is None
    assert requirement_of(f"vllm=={DIGITS}") is None
    assert marker_holds(f"python_version < '{DIGITS}'", {}) is None
    assert not Range("vllm", "<1").check({"vllm": DIGITS})
    inventory = parse_list(
        f"ray==1\nvllm=={DIGITS}\nx-{DIGITS}-py3-none-any.whl\nvllm {DIGITS}\n".encode(), "list"
    )
    assert inventory.versions == {"ray": ("1",)}


def test_deeply_nested_markers_are_invalid() -> None:
    assert marker_holds(DEEP, {}) is None
    assert marker_holds(DEEP[1500:2600], {}) is None
    assert requirement_of(f"vllm; {DEEP}") is None


@pytest.mark.parametrize(
    "line",
    ["numpy<2\n--index-url https://example.org", "numpy<2\r-e .", "a\x0b", "numpy\u2028--pre"],
)
def test_a_requirement_is_one_line(line: str) -> None:
    assert requirement_of(line) is None


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"versions": 1}', "[" * 10_000])
def test_an_invalid_answer_of_pip_is_an_error(answer: str) -> None:
    with pytest.raises(BuildError, match="did not return a list"):
        parse(answer)


@given(st.text(max_size=50))
def test_any_text(text: str) -> None:
    is_version(text), specifiers_of(text), requirement_of(text), marker_holds(text, {})


@pytest.mark.parametrize(
    "needed",
    [{"c"}, {"a", "h"}, {"b", "c", "g"}, set("abcdefgh")],
    ids=lambda needed: "".join(sorted(needed)),
)
def test_the_fewest_names_that_restore_a_stage_are_found(needed: set[str]) -> None:
    found = fewest("abcdefgh", lambda names: needed <= set(names))
    assert set(found) == needed


def test_no_names_are_named_if_all_together_restore_nothing() -> None:
    assert fewest("abc", lambda names: False) == () == fewest("", lambda names: True)


def test_the_package_nearest_to_the_failure_is_suspected_first() -> None:
    names: Sequence[str] = ["aiohttp", "huggingface-hub", "numpy"]
    text = "File numpy/x.py\nFile huggingface_hub/y.py\nImportError"
    assert suspects_first(names, text) == ["huggingface-hub", "numpy", "aiohttp"]
