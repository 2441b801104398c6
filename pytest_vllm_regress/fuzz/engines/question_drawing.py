"""Questions, drawn and made smaller. What may legitimately differ between configurations is not drawn: unseeded
sampling, and options that the script cannot survive.

A scripted request has no option that changes the choice of tokens (penalties, biases, masks), and
none that forbids what the script says. A request without a script is greedy or seeded, so that its
answer depends on nothing but the request.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from ...util.codec import replace
from ..drawing import drawn_data
from ..finding import Problem
from ..reduce import smaller_documents
from .engine_question import EVERYWHERE, Request, Turns, is_broken

_DATA = drawn_data("engine_texts")
_CHOOSING = frozenset(_DATA["choosing"])
"""Options that change which tokens are chosen, or cut the prompt."""


def is_sound(request: Request) -> bool:
    """Return whether the answer depends on nothing but the request, and vLLM can follow its script."""
    options = request.options
    if not options.keys() >= EVERYWHERE or "" in (request.prompt, *request.said):
        return False
    if not request.said:
        return options["temperature"] <= 0 or "seed" in options
    if request.is_broken or not _CHOOSING.isdisjoint(options):
        return False
    if options.get("min_tokens") and (request.ends or "stop_token_ids" in options):
        return False
    return len(request.said) in (1, options.get("n", 1))


Options = dict[str, Any]


def _set(draw: st.DrawFn, options: Options, *rows: tuple[str, int, Any]) -> None:
    """Set options, each in its share of the requests: the name, in one of how many requests, and
    the values."""
    for name, share, values in rows:
        if draw(st.integers(1, share)) == 1:
            options[name] = draw(_strategy(values))


def _set_group(draw: st.DrawFn, options: Options, group: str) -> None:
    """Set options of a group in the data. There values are a list or the name of one, or lists of
    at most so many of its members."""
    _set(draw, options, *_DATA["options"][group])


def _strategy(values: Any) -> st.SearchStrategy[Any]:
    if isinstance(values, st.SearchStrategy):
        return values
    if isinstance(values, str):
        values = _DATA[values]
    if isinstance(values, dict):
        members = _strategy(values["of"])
        unique = values.get("unique", False)
        return st.lists(members, min_size=1, max_size=values["most"], unique=unique)
    return st.sampled_from(values) if len(values) > 1 else st.just(values[0])


def _common(draw: st.DrawFn) -> Options:
    options: Options = {"max_tokens": draw(st.sampled_from((1, 2, 3, 6, 10, 16, 24)))}
    _set_group(draw, options, "common")
    if "stop" not in options:
        _set_group(draw, options, "detokenize")
    return options


@st.composite
def scripted(draw: st.DrawFn) -> Request:
    """Draw a request whose answer is said by a script."""
    options = _common(draw)
    count = draw(st.sampled_from((1, 1, 1, 1, 2, 3, 8)))
    pieces = [*_DATA["said"], *(_DATA["broken_said"] if draw(st.integers(1, 6)) == 1 else ())]
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
    _set_group(draw, options, "stop_ids")
    if "stop_token_ids" not in options and not ends:  # a script cannot say what min_tokens forbids
        _set(draw, options, ("min_tokens", 3, st.integers(1, options["max_tokens"])))
    return Request(_prompt(draw), said, ends, options)


@st.composite
def free(draw: st.DrawFn) -> Request:
    """Draw a request whose answer the simulated model draws, greedily or with a seed."""
    options = _common(draw)
    if draw(st.booleans()):
        options.update(temperature=1.0, seed=draw(st.integers(0, 3)))
        _set_group(draw, options, "seeded")
    else:
        options["temperature"] = 0.0
    _set(draw, options, ("min_tokens", 4, st.integers(1, options["max_tokens"])))
    _set_group(draw, options, "free")
    if "allowed_token_ids" not in options and "bad_words" not in options:
        _set_group(draw, options, "grammars")
    _set_group(draw, options, "cuts")
    return Request(_prompt(draw, broken=draw(st.integers(1, 6)) == 1), (), True, options)


def _prompt(draw: st.DrawFn, broken: bool = False) -> str:
    tails = _DATA["broken_tails" if broken else "tails"]
    return "".join([draw(st.sampled_from(_DATA["prefixes"])), draw(st.sampled_from(tails))])


@st.composite
def _requests(draw: st.DrawFn) -> Request:
    """Draw a request with what concerns its surroundings, too: adapter, salt, priority, abort."""
    request = draw(st.one_of(scripted(), free()))
    adapters = st.tuples(st.sampled_from(("mine", "yours")), st.integers(1, 2))
    extras: Options = {}
    _set(draw, extras, ("adapter", 3, adapters), ("salt", 3, ("mine", "salt")))
    extras["priority"] = draw(st.integers(0, 2))
    _set(draw, extras, ("abort_after", 3, st.integers(1, 4)))
    return replace(request, **extras)


@functools.cache
@st.composite
def questions(draw: st.DrawFn) -> Turns:
    """Draw one or two turns of up to four requests, or one request that may be rejected."""
    if draw(st.integers(1, 12)) == 1:
        options = {
            "max_tokens": 3,
            "temperature": 0.0,
            **draw(st.sampled_from(_DATA["wrong_options"])),
        }
        return Turns(((Request("Hi there", (), True, options),),))
    turn = st.lists(_requests(), min_size=1, max_size=4).map(tuple)
    return Turns(tuple(draw(st.lists(turn, min_size=1, max_size=2))))


def smaller_questions(question: Turns, problem: Problem) -> Iterator[Turns]:
    """Yield simpler questions, the simplest first: the request that shows the problem alone."""
    if problem.at is not None:
        yield Turns(((question.requests[problem.at],),))
    if len(question.turns) > 1:
        yield Turns((question.requests,))
    for smaller in smaller_documents(question):
        if all(map(is_sound, smaller.requests)):
            yield smaller
