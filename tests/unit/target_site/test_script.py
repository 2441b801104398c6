"""The text format of scripts: encoding, decoding, and characters that nothing on the way changes."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.target_site.vllm_regress_target import script_format as script
from pytest_vllm_regress.target_site.vllm_regress_target.script_format import ScriptedAnswer


def encodable(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


TOKENS = st.one_of(
    st.integers(0, 255), st.integers(256, 400000), st.text(min_size=1).filter(encodable)
)
SHARES = st.floats(1e-9, 1.0)
STEPS = st.one_of(
    TOKENS.map(lambda token: ((token, 1.0),)),
    st.lists(st.tuples(TOKENS, SHARES), min_size=2, max_size=4).map(tuple),
)
ANSWERS = st.builds(ScriptedAnswer, st.lists(STEPS, max_size=20).map(tuple), st.booleans())


@given(st.lists(ANSWERS, min_size=1, max_size=4))
def test_decoding_reverses_encoding(answers: list[ScriptedAnswer]) -> None:
    text = script.encode(answers)
    assert script.decode(text) == tuple(answers)
    assert text.isascii() and text.isprintable() and " " not in text and "<" not in text
    assert unicodedata.normalize("NFKC", text) == text.strip() == text


@pytest.mark.parametrize("text", ["a b", "%G0", "$12", "`2:0.5;a", "`:", "`1:x;a", "a~b", "\u00e9"])
def test_a_text_that_is_not_a_script_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="at "):
        script.decode(text)


def test_an_answer_has_a_step_for_every_position() -> None:
    certain, divided = ((97, 1.0),), ((98, 0.5), (99, 0.5))
    assert [ScriptedAnswer((certain, divided)).at(place, 7) for place in range(4)] == [
        certain,
        divided,
        ((7, 1.0),),
        ((7, 1.0),),
    ]
    assert [ScriptedAnswer((certain, divided), ends=False).at(place, 7) for place in range(4)] == [
        certain,
        divided,
        certain,
        divided,
    ]
    assert ScriptedAnswer(()).at(0, 7) == ((7, 1.0),)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3], None),
        ([1, 90, 5, 6, 91, 2], [5, 6]),
        ([90, 5, 91, 7, 90, 91, 1], []),
        ([90, 5, 91, 7, 90, 6, 91, 1], [6]),
    ],
)
def test_the_last_script_of_a_prompt_counts(tokens: list[int], expected: list[int] | None) -> None:
    assert script.find(tokens, 90, 91) == expected


@pytest.mark.parametrize("tokens", [[5, 91], [1, 90, 5], [90, 5, 91, 90, 6]])
def test_a_truncated_script_is_an_error(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="was cut"):
        script.find(tokens, 90, 91)


@pytest.mark.parametrize(
    ("request_id", "choice"),
    [
        ("3_chatcmpl-1234", 3),
        ("12_7-0123abcd", 12),
        ("regress-4_parallel_sample_2", 2),
        ("5_parallel_sample_3", 3),
        ("17", 0),
        ("chatcmpl-2_x", 0),
        ("cmpl-aa-1", 0),
    ],
)
def test_the_choice_is_part_of_the_request_id(request_id: str, choice: int) -> None:
    assert script.choice_of(request_id) == choice
