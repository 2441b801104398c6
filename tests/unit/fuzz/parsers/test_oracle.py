"""The oracle names what is wrong with an answer; cuts add up to the text and keep markers whole."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress.engines.inputs.formats import FunctionCall, Meaning
from pytest_vllm_regress.fuzz.parsers.parser_oracle import ParserAnswer, problem, same
from pytest_vllm_regress.fuzz.parsers.parser_question import CutKind, cut

MEANT = Meaning("Hm.", "Hello.", (FunctionCall("add", {"count": 1, "city": "a"}),))
ONE = ("add", '{"count": 1, "city": "a"}')


def answer(**changes: Any) -> ParserAnswer:
    return ParserAnswer(**{"reasoning": "Hm.", "content": " Hello.\n", "calls": (ONE,), **changes})


def test_outer_space_and_the_order_of_arguments_do_not_matter() -> None:
    assert (
        problem(MEANT, answer(calls=(("add", '{"city":"a","count":1.0}'),)), "stream", ()) is None
    )


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"calls": ()}, "all calls lost"),
        ({"calls": (ONE, ONE)}, "call doubled"),
        ({"calls": (("", ONE[1]),)}, "name lost"),
        ({"calls": (("addadd", ONE[1]),)}, "name changed"),
        ({"calls": (("add", ""),)}, "arguments lost"),
        ({"calls": (("add", "{}"),)}, "arguments replaced by {}"),
        ({"calls": (("add", '{"count": 1'),)}, "arguments cut off"),
        ({"calls": (("add", ONE[1] * 2),)}, "arguments are no JSON"),
        ({"calls": (("add", '{"count": 1}'),)}, "argument lost"),
        ({"calls": (("add", '{"count": 1, "city": "a", "x": 1}'),)}, "argument invented"),
        ({"calls": (("add", '{"count": "1", "city": "a"}'),)}, "type changed"),
        ({"calls": (("add", '{"count": true, "city": "a"}'),)}, "type changed"),
        ({"calls": (("add", '{"count": 2, "city": "a"}'),)}, "value changed"),
        ({"content": ""}, "content lost"),
        ({"content": "Hello.Hello."}, "content doubled"),
        ({"content": "Hello.<x>"}, "marker leaked"),
        ({"content": "Hel"}, "part of the content lost"),
        ({"reasoning": "", "content": "Hm.Hello."}, "reasoning in the content"),
        ({"reasoning": "Hm.Hello.", "content": ""}, "content in the reasoning"),
        ({"finished": False}, "no end"),
        ({"error": ("KeyError", "'x'", "f in g.py")}, "raises KeyError in f"),
    ],
)
def test_what_is_wrong_has_a_name(changes: dict[str, Any], kind: str) -> None:
    found = problem(MEANT, answer(**changes), "stream", ("<x>",))
    assert found is not None
    assert found.kind == kind


def test_an_empty_object_is_expected_of_a_call_without_arguments() -> None:
    found = problem(
        Meaning(calls=(FunctionCall("now", {}),)), ParserAnswer(calls=(("now", ""),)), "stream", ()
    )
    assert found is not None
    assert found.kind == "no arguments instead of {}"


def test_half_a_surrogate_pair_is_escaped() -> None:
    found = problem(MEANT, answer(content="\ud83d"), "stream", ())
    assert found is not None
    assert "\\ud83d" in found.words
    found.words.encode()


def test_true_is_no_number() -> None:
    assert not same({"a": [1]}, {"a": [True]})
    assert same([1, {"a": None}], [1.0, {"a": None}])


TEXT = 'Zürich 北²😀 <call>{"name": "add_1", "arguments": {"a": "b\\n"}}</call>\n'


@pytest.mark.parametrize("kind", list(CutKind))
def test_pieces_add_up_to_the_text(kind: CutKind) -> None:
    assert "".join(cut(TEXT, ("<call>", "</call>"), kind, 3).pieces) == TEXT


def test_a_marker_is_never_cut() -> None:
    pieces = cut(TEXT, ("<call>", "</call>"), CutKind.CHARACTERS, 3).pieces
    assert pieces.count("<call>") == pieces.count("</call>") == 1
    assert set(map(len, pieces)) == {1, 6, 7}


def test_markers_stand_alone_between_the_texts() -> None:
    assert cut("a<call>b</call>", ("<call>", "</call>"), CutKind.RUNS, 0).pieces == (
        "a",
        "<call>",
        "b",
        "</call>",
    )
