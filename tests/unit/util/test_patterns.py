"""A case's own pattern is searched within a time, and the ordinary one costs no process."""

from __future__ import annotations

import os
import re
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.cases.model import find_cases
from pytest_vllm_regress.util import patterns
from pytest_vllm_regress.util.patterns import MAX_TEXT, PatternTooSlow, is_cheap, search
from tests.helpers import ROOT

SLOW = "(a+)+b"


@pytest.mark.parametrize(("pattern", "text"), [(SLOW, "a" * 40), ("(a|a)*b", "a" * 40), (r"(\w+\s?)*x", "word " * 20)])
def test_a_search_without_end_is_ended(pattern: str, text: str) -> None:
    began = time.monotonic()
    with pytest.raises(PatternTooSlow, match="without an end"):
        search(pattern, text, 0.3)
    assert time.monotonic() - began < 10
    assert search(SLOW, "xaab", 20) == (1, 4)  # and the next one is searched


def test_the_process_is_used_again_and_ended() -> None:
    assert search(SLOW, "xaab", 20) == (1, 4)
    process = patterns._searcher._process
    assert process is not None
    assert search(SLOW, "xabc" + "c" * 30, 20) == (1, 3)
    assert search(SLOW, "xaac", 20) is None
    assert patterns._searcher._process is process
    process.kill()
    process.wait()
    assert search(SLOW, "xaab", 20) == (1, 4)
    patterns._searcher.end()
    assert patterns._searcher._process is None
    assert process.pid not in [each.pid for each in psutil.Process().children() if each.pid == process.pid]


def test_it_ends_with_its_controller() -> None:
    """Its input is at an end then; in the midst of a search its own alarm ends it."""
    search(SLOW, "", 20)
    process = patterns._searcher._process
    assert process is not None and process.stdin is not None
    os.write(process.stdin.fileno(), b'{"pattern": "(a+)+b", "text": "' + b"a" * 60 + b'", "seconds": -0.9}\n')
    assert process.wait(20) == -14
    patterns._searcher.end()


@pytest.mark.parametrize(
    "pattern", ["expected \\d{1,4} results", "no such thing", "^a|b$", "[a-z]{3}", "x?y?z?", "(?:ab){2}"]
)
def test_an_ordinary_pattern_costs_no_process(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_searcher", None)
    text = "text " * 20_000
    assert is_cheap(pattern, len(text))
    found = re.search(pattern, text, re.MULTILINE)
    assert search(pattern, text) == (found.span() if found else None)


@pytest.mark.parametrize(
    "pattern",
    [SLOW, "(a?){40}a{40}", "(?:a?){20}b", "(a|b|ab)*c", ".*.*.*x", "(a{1,30}){1,30}b", r"(x)\1", "a(?=b+)", "(" * 50],
)
def test_what_may_take_long_is_none_of_those(pattern: str) -> None:
    assert not is_cheap(pattern, 3000)
    assert is_cheap("expected .* results", 3000)


def test_of_a_long_text_both_ends_are_searched() -> None:
    text = "a" + "-" * MAX_TEXT + "b"
    assert search("a", text) == (0, 1)
    assert search("b", text) == (len(text) - 1, len(text))


@given(st.text(max_size=30))
def test_any_text_is_searched_as_it_is(text: str) -> None:
    found = re.search(r"\W+\w*", text, re.MULTILINE)
    assert search(r"\W+\w*", text, 20) == (found.span() if found else None)


def test_every_pattern_of_the_project_is_found_the_same_way() -> None:
    for case in find_cases(ROOT / "cases"):
        text = f"first line\n{case.symptom.pattern}\n"
        found = re.search(case.symptom.pattern, text, re.MULTILINE)
        assert search(case.symptom.pattern, text, 20) == (found.span() if found else None)
