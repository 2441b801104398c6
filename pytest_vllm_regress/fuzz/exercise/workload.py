"""The workload as data (``data/exercise``): stations with acts, each a list of requests."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from ...util.codec import Document, Meta, encode, load, replace
from ...util.paths import DATA
from ..drawing import drawn
from ..engines.engine_question import Request
from ..engines.question_drawing import questions

FOLDER = DATA / "exercise"
_MAX_DESCRIBED = 200
_MAX_BYTES = 1024 * 1024
_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
_FILLER = "the quick brown fox jumps over a lazy dog, 0123456789 times; "
End = Literal["", "close", "abort", "abort twice"]


class Item(Request, frozen=True):
    """A request of an act.

    Attributes:
        id: empty for its number. An id may come back in a later act.
        length: the prompt is filled up to this many tokens of the forged tokenizers, its bytes.
        token_ids: the prompt instead of a text.
        image: side length and color of each image, which the prompt has as ``<image>``.
        kind: ``delta``, ``cumulative`` or ``final_only``.
        task: of a pooling engine.
        at, abort_at: the step before which it is added, and aborted.
        end, after: how it is ended early, after so many results.
        slow: whoever reads the stream takes time for each result.
        plain: without the options that other requests have.
        times: how many requests of this kind, each with another number behind its prompt.
    """

    id: str = ""
    length: int = 0
    token_ids: tuple[int, ...] = ()
    image: tuple[tuple[int, int], ...] = ()
    kind: Literal["delta", "cumulative", "final_only"] = "final_only"
    task: str = ""
    at: int = 0
    abort_at: int | None = None
    end: End = ""
    after: int = 0
    slow: bool = False
    plain: bool = False
    times: int = 1


class Exchange(Document, frozen=True):
    """An HTTP request.

    Attributes:
        to: method and path.
        body: JSON; ``text`` replaces it.
        model: the body gets the name of the served model.
        close_after: the client closes the connection after so many events of the stream.
        said: what the model says; it is put behind the prompt, the input or the last message.
    """

    to: str
    body: Mapping[str, Any] = {}
    text: str = ""
    model: bool = True
    close_after: int = 0
    said: tuple[str, ...] = ()
    ends: bool = True
    headers: Mapping[str, str] = {}


class Act(Document, frozen=True):
    """Requests that are sent together, before those of the next act.

    Attributes:
        drawn: seed and number of drawn questions, whose requests come last.
        call: a method of the engine instead of requests, with its ``arguments``; or a signal.
        together: the exchanges are sent at the same time, else one after the other.
    """

    name: str
    requests: tuple[Item, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    drawn: tuple[int, int] | None = None
    call: str = ""
    arguments: Mapping[str, Any] = {}
    together: bool = False

    def items(self) -> list[Item]:
        """Return all requests, each with an id."""
        listed = [
            replace(one, prompt=_with_bytes(one.prompt), said=tuple(map(_with_bytes, one.said)))
            for item in self.requests
            for one in _repeated(item)
        ]
        if self.drawn is not None:
            seed, count = self.drawn
            listed += [
                _item(one) for turns in drawn(questions(), count, seed) for one in turns.requests
            ]
        return [
            one if one.id else replace(one, id=f"{number}") for number, one in enumerate(listed, 1)
        ]


def _item(request: Request) -> Item:
    fields = {name: getattr(request, name) for name in Request.__struct_fields__}
    return Item(**{**fields, "abort_after": None, "adapter": None, "priority": None}, plain=True)


def _repeated(item: Item) -> list[Item]:
    if item.times == 1:
        return [item]
    return [replace(item, prompt=f"{item.prompt}{number}") for number in range(item.times)]


def _with_bytes(text: str) -> str:
    """Return a text with lone surrogates, which TOML cannot hold, in place of U+E080 to U+E0FF."""
    return "".join(chr(ord(c) - 0xE000 + 0xDC00) if "\ue080" <= c <= "\ue0ff" else c for c in text)


class Station(Document, frozen=True):
    """An engine or a server, and the acts that it is asked.

    Attributes:
        front: ``stepped`` is an offline engine whose core runs in its own process, step by step.
        like: the station whose acts it has, too.
    """

    name: Annotated[str, Meta(pattern="^[a-z0-9 -]{1,40}$")]
    front: Literal["stepped", "async", "serve"]
    spec: Mapping[str, Any] = {}
    acts: tuple[Act, ...] = ()
    like: str = ""


class _Stations(Document, frozen=True):
    station: tuple[Station, ...]


@functools.cache
def stations() -> tuple[Station, ...]:
    """Return all stations, in the order in which they are run."""
    listed = [
        station
        for file in sorted(FOLDER.glob("*.toml"))
        for station in load(_Stations, file, _MAX_BYTES, what="the exercise").station
    ]
    by_name = {station.name: station for station in listed}
    return tuple(
        replace(one, acts=(*by_name[one.like].acts, *one.acts)) if one.like else one
        for one in listed
    )


def prompt_of(item: Item) -> Any:
    """Return the prompt as the target takes it."""
    text = item.text
    if item.length:
        filled = (item.prompt + _FILLER * (1 + item.length // len(_FILLER)))[: item.length]
        text = replace(item, prompt=filled).text if item.said else filled
    more: dict[str, Any] = {"cache_salt": item.salt} if item.salt else {}
    if item.image:
        text = text.replace("<image>", _IMAGE)
        more["images"] = [
            {"size": [side, side], "color": [shade, shade, 90]} for side, shade in item.image
        ]
    if item.token_ids or item.is_broken:
        return {"prompt_token_ids": list(item.token_ids) or item.tokens, **more}
    return {"prompt": text, **more} if more else text


def options_of(item: Item) -> dict[str, Any]:
    """Return the sampling parameters of a request."""
    options = dict(encode(item.options))
    return options if item.plain else {"max_tokens": 8, "temperature": 0.0, **options}


def described(name: str) -> str:
    """Return what was asked, of the answer with this name (station, act and request); empty if the
    name says it."""
    station_name, _, rest = name.partition("/")
    act_name, _, request = rest.partition("/")
    for station in stations():
        for act in station.acts if station.name == station_name else ():
            if act.name == act_name:
                return _described(act, request)[:_MAX_DESCRIBED]
    return ""


def _described(act: Act, request: str) -> str:
    if act.exchanges and request.isdecimal():
        exchange = act.exchanges[int(request) - 1]
        said = f", says {exchange.said}" if exchange.said else ""
        return f"{exchange.to} {exchange.text or json.dumps(encode(exchange.body))}{said}"
    for item in act.items():
        if item.id == request:
            fields = {
                name: one for name, one in encode(item).items() if name not in ("id", "plain")
            }
            return json.dumps(fields, ensure_ascii=False)
    return act.call
