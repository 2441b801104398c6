"""Drawn questions. What may legitimately differ between configurations is not drawn: unseeded
sampling, and options that the script cannot survive.

A scripted request has no option that changes the choice of tokens (penalties, biases, masks), and
none that forbids what the script says. A request without a script is greedy or seeded, so that its
answer depends on nothing but the request.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from ...schemas.drawing import draw_distinct
from ...util import codec
from .engine_question import Request, Turns, is_broken

_PREFIXES = (
    "",
    "Hi ",
    "one two three four five six seven eight nine ten ",
    "The same prefix of many requests. " * 3,
)
_TAILS = ("a", "b", "x y", "é", "北京", "Zürich 😀", "\n", "The end.")
_BROKEN_TAILS = ("\udcc3", "x\udce5\udc8c", "\udcf0\udc9f", "ok\udcff")
_SAID = (
    "one",
    " two",
    "three ",
    ".",
    "!",
    "e",
    "é",
    "😀",
    "北",
    "\n",
    "stop",
    "aaaa",
    "{}",
    " ",
    "<think>",
    "</think>",
)
_BROKEN_SAID = ("\udcc3", "\udcf0\udc9f", "\udcff")
_STOPS = ("one", "two", ".", "!", "e", "o.", "é", "😀", "stop", "aa", "\n", "e t", "zz")
_STOP_TOKENS = tuple(b"eo.!ta")
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
_GRAMMARS: tuple[dict[str, Any], ...] = (
    {"json": _SCHEMA},
    {"regex": "[ab]{3,6}c"},
    {"choice": ["yes", "no", "maybe so"]},
)
_CHOOSING = frozenset(
    {
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "bad_words",
        "logit_bias",
        "allowed_token_ids",
        "structured_outputs",
        "top_k",
        "top_p",
        "min_p",
        "truncate_prompt_tokens",
    }
)
"""Options that change which tokens are chosen, or cut the prompt."""
_WRONG: tuple[dict[str, Any], ...] = (
    {"max_tokens": 0},
    {"max_tokens": -1},
    {"n": 0},
    {"top_p": 0.0},
    {"top_p": 1.5},
    {"temperature": -1.0},
    {"logprobs": 100000},
    {"prompt_logprobs": 100000},
    {"prompt_logprobs": -1},
    {"logprobs": -1},
    {"stop": [""]},
    {"stop": ["\udcff"]},
    {"min_tokens": 30},
    {"presence_penalty": 5.0},
    {"logit_bias": {"100000": 1.0}},
    {"logit_bias": {"-1": 1.0}},
    {"stop_token_ids": [10**6]},
    {"stop_token_ids": [-1]},
    {"allowed_token_ids": []},
    {"allowed_token_ids": [10**6]},
    {"bad_words": [""]},
    {"structured_outputs": {"regex": "("}},
    {"structured_outputs": {"regex": "(?=a)b"}},
    {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"grammar": "root ::= "}},
    {"structured_outputs": {"json": {"type": "nonsense"}}},
    {"structured_outputs": {"json_object": False}},
    {"truncate_prompt_tokens": 0},
    {"truncate_prompt_tokens": 10000},
)
"""Options that vLLM must reject, or accept, on both sides alike. Each is asked alone."""


def is_sound(request: Request) -> bool:
    """Return whether the answer depends on nothing but the request, and vLLM can follow its script."""
    options = request.options
    if not request.said:
        return options.get("temperature", 1.0) <= 0 or "seed" in options
    if request.is_broken or not _CHOOSING.isdisjoint(options):
        return False
    if options.get("min_tokens") and (request.ends or "stop_token_ids" in options):
        return False
    return len(request.said) in (1, options.get("n", 1))


Options = dict[str, Any]
_COMMON = (
    ("logprobs", 3, (0, 1, 2, 5)),
    ("prompt_logprobs", 6, (0, 1, 2)),
    ("stop", 3, st.lists(st.sampled_from(_STOPS), min_size=1, max_size=3, unique=True)),
    ("include_stop_str_in_output", 6, (True,)),
    ("ignore_eos", 5, (True,)),
    ("skip_special_tokens", 8, (False,)),
    ("seed", 4, st.integers(0, 3)),
)
"""Options of all requests: the name, in one of how many requests, and the values."""
_SEEDED = (
    ("top_k", 3, (1, 5, 50)),
    ("top_p", 3, (0.1, 0.9)),
    ("min_p", 4, (0.05, 0.5)),
    ("n", 4, (2, 3, 8)),
)
_STOP_IDS = st.lists(st.sampled_from(_STOP_TOKENS), min_size=1, max_size=2)
_FREE = (
    ("stop_token_ids", 5, _STOP_IDS),
    ("presence_penalty", 6, (-1.0, 0.5, 2.0)),
    ("frequency_penalty", 6, (-1.0, 0.5, 2.0)),
    ("repetition_penalty", 6, (0.8, 1.3)),
    ("bad_words", 5, st.lists(st.sampled_from(("e", "a", " t", "ab")), min_size=1, max_size=2)),
    ("logit_bias", 6, ({"97": 5.0}, {"101": -100.0}, {"32": 3.0})),
    ("allowed_token_ids", 10, (list(b"abcdef "),)),
)


def _set(
    draw: st.DrawFn,
    options: Options,
    *rows: tuple[str, int, st.SearchStrategy[Any] | Sequence[Any]],
) -> None:
    """Set each option in its share of the requests."""
    for name, share, values in rows:
        if draw(st.integers(1, share)) == 1:
            if not isinstance(values, st.SearchStrategy):
                values = st.sampled_from(values) if len(values) > 1 else st.just(values[0])
            options[name] = draw(values)


def _common(draw: st.DrawFn) -> Options:
    options: Options = {"max_tokens": draw(st.sampled_from((1, 2, 3, 6, 10, 16, 24)))}
    _set(draw, options, *_COMMON)
    if "stop" not in options:
        _set(draw, options, ("detokenize", 20, (False,)))
    return options


@st.composite
def scripted(draw: st.DrawFn) -> Request:
    """Draw a request whose answer is said by a script."""
    options = _common(draw)
    count = draw(st.sampled_from((1, 1, 1, 1, 2, 3, 8)))
    pieces = (*_SAID, *_BROKEN_SAID) if draw(st.integers(1, 6)) == 1 else _SAID
    texts = st.lists(st.sampled_from(pieces), min_size=1, max_size=5).map("".join)
    said = tuple(draw(texts) for _ in range(count if draw(st.booleans()) else 1))
    if "stop" in options and draw(st.booleans()):  # what the model says
        places = st.integers(0, len(said[0]) - 1)
        starts = draw(st.lists(places, min_size=1, max_size=2, unique=True))
        strings = [said[0][start : start + draw(st.integers(1, 3))] for start in starts]
        options["stop"] = [string for string in strings if not is_broken(string)] or options["stop"]
    if count > 1:
        options["n"] = count
    options["temperature"] = draw(st.sampled_from((0.5, 1.0) if count > 1 else (0.0, 1.0)))
    ends = draw(st.booleans())
    _set(draw, options, ("stop_token_ids", 4, _STOP_IDS))
    if "stop_token_ids" not in options and not ends:  # a script cannot say what min_tokens forbids
        _set(draw, options, ("min_tokens", 3, st.integers(1, options["max_tokens"])))
    return Request(_prompt(draw), said, ends, options)


@st.composite
def free(draw: st.DrawFn) -> Request:
    """Draw a request whose answer the simulated model draws, greedily or with a seed."""
    options = _common(draw)
    if draw(st.booleans()):
        options.update(temperature=1.0, seed=draw(st.integers(0, 3)))
        _set(draw, options, *_SEEDED)
    else:
        options["temperature"] = 0.0
    _set(draw, options, ("min_tokens", 4, st.integers(1, options["max_tokens"])), *_FREE)
    if "allowed_token_ids" not in options and "bad_words" not in options:
        _set(draw, options, ("structured_outputs", 4, _GRAMMARS))
    _set(draw, options, ("truncate_prompt_tokens", 12, (1, 8, 40)))
    return Request(_prompt(draw, broken=draw(st.integers(1, 6)) == 1), (), True, options)


def _prompt(draw: st.DrawFn, broken: bool = False) -> str:
    return draw(st.sampled_from(_PREFIXES)) + draw(
        st.sampled_from(_BROKEN_TAILS if broken else _TAILS)
    )


@st.composite
def _requests(draw: st.DrawFn) -> Request:
    """Draw a request with what concerns its surroundings, too: adapter, salt, priority, abort."""
    request = draw(st.one_of(scripted(), free()))
    adapters = st.tuples(st.sampled_from(("mine", "yours")), st.integers(1, 2))
    extras: Options = {}
    _set(draw, extras, ("adapter", 3, adapters), ("salt", 3, ("mine", "salt")))
    extras["priority"] = draw(st.integers(0, 2))
    _set(draw, extras, ("abort_after", 3, st.integers(1, 4)))
    return codec.replace(request, **extras)


@st.composite
def questions(draw: st.DrawFn) -> Turns:
    """Draw one or two turns of up to four requests, or one request that may be rejected."""
    if draw(st.integers(1, 12)) == 1:
        options = {"max_tokens": 3, "temperature": 0.0, **draw(st.sampled_from(_WRONG))}
        return Turns(((Request("Hi there", (), True, options),),))
    turn = st.lists(_requests(), min_size=1, max_size=4).map(tuple)
    return Turns(tuple(draw(st.lists(turn, min_size=1, max_size=2))))


@functools.lru_cache(maxsize=2)
def drawn(count: int, seed_value: int) -> list[Turns]:
    """Return the distinct questions among ``count`` drawn ones."""
    return draw_distinct(questions(), count, seed_value, Turns.to_text)
