"""The pattern of a case is searched within a time limit and means what it means to ``re``."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.util.patterns import MAX_TEXT, PatternError, PatternTooSlow, search
from tests.helpers.cases import project_cases


def span(pattern: str, text: str) -> tuple[int, int] | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match.span() if match else None


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(?:x+x+)+y", "x" * 30_000),
        ("(?:[ab]{1,30}){1,30}[cd]", "ab" * 4000),
        (r"(?:\w+\s?)*[!?]", "word " * 20_000),
        ("a?" * 3000 + "[bc]", "a" * 4000),
        (r"(.*)*\d", "a" * 100_000),
    ],
)
def test_a_catastrophic_pattern_exceeds_its_time(pattern: str, text: str) -> None:
    began = time.monotonic()
    with pytest.raises(PatternTooSlow, match=r"the search for the pattern .* exceeded 0\.3 s"):
        search(pattern, text, 0.3)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("(a+)+b", "xaab", (1, 4)),
        ("(a+)+b", "a" * 40, None),
        ("(a|a)*b", "a" * 40, None),
        (r"(\w+\s?)*x", "word " * 20, None),
    ],
)
def test_nested_repetitions_that_finish_are_searched(
    pattern: str, text: str, expected: tuple[int, int] | None
) -> None:
    assert search(pattern, text, 20) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "expected \\d{1,4} results",
        "no such thing",
        "^a|b$",
        "[a-z]{3}",
        "x?y?z?",
        "(?:ab){2}",
        "a(?=b+)",
        r"(x)\1",
        "tex{e}",  # an approximate match to `regex`
        "(?:text){s<=1}",
        r"te\{0\}",
        "text{}",
        "te{,2}x",
        r"\N{LATIN SMALL LETTER X}{1}",
        "[[:alpha:]]",  # a POSIX class to `regex`
        "[:e]",
        r"[{x}]+",
        r"\[:",
    ],
)
@pytest.mark.parametrize(
    "text", ["text " * 1000, "tex{e} (text){s<=1} [:alpha:] te{0} text{}", "xx\nabab\nb", ""]
)
@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
def test_a_pattern_means_what_it_means_to_re(pattern: str, text: str) -> None:
    assert search(pattern, text, 20) == span(pattern, text)


def test_every_pattern_of_the_project_finds_the_same_text_as_with_re() -> None:
    cases = project_cases()
    texts = {f"first line\n{case.symptom.pattern}\n" for case in cases}
    for case in cases:
        observations = case.directory / "observations.json"
        if observations.exists():
            texts |= set(strings(json.loads(observations.read_text())))
    for case in cases:
        for text in texts:
            assert search(case.symptom.pattern, text, 20) == span(case.symptom.pattern, text)


def strings(value: object) -> list[str]:
    """Every string in a JSON document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(?:" * 2000 + "a" + ")" * 2000])
def test_an_invalid_pattern_is_an_error_and_not_a_mismatch(pattern: str) -> None:
    with pytest.raises(PatternError, match="is not a usable regular expression"):
        search(pattern, "a")


def test_a_search_that_needs_too_much_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Greedy:
        def search(self, text: str, timeout: float) -> None:
            raise MemoryError

    monkeypatch.setattr("pytest_vllm_regress.util.patterns._compile", lambda pattern: Greedy())
    with pytest.raises(PatternTooSlow, match="exceeded its memory"):
        search("a", "a")


def test_both_ends_of_a_long_text_are_searched() -> None:
    text = "a" + "-" * MAX_TEXT + "b"
    assert search("a", text) == (0, 1)
    assert search("b", text) == (len(text) - 1, len(text))


@given(st.text(max_size=30))
def test_any_text_can_be_searched(text: str) -> None:
    assert search(r"\d+[a-z]*$", text, 20) == span(r"\d+[a-z]*$", text)
