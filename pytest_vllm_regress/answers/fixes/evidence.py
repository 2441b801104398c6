"""What a failure says about its cause: message, frames and source lines of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MAX_TEXT = 2000
MAX_MODELS = 3
_FRAME = re.compile(
    r"""File ["']?(?:[^"'\n]*[/\\])?vllm[/\\]([\w/\\.-]+?\.py)["']?(?:, l(?:ine )?|:)?(?:\d+)?(?:,? *in +([\w.<>]+))?"""
)
_ANY_FRAME = re.compile(r"""File ["'][^"'\n]+["'], l""")
_EXCEPTION = re.compile(
    r"(?:^|[\s|\]>*`)])((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Timeout|Unknown|Exit|Interrupt)\w*)(?::\s*(.*)|\s*$)"
)
_MODEL = re.compile(r"""(?:--model(?:-path)?[= ]|vllm serve |\bmodel ?= ?)["']?([\w./-]{3,200})""")
_HEAD = "Traceback (most recent call last)"
_CHAIN = re.compile(
    r"The above exception was the direct cause|During handling of the above exception"
)
_PREFIX = re.compile(
    r"""^(?:\s*(?:[|>]\s?)+)?\s*(?:\[rank\d+\]:\s?|\([\w .-]*(?:pid|rank)[= ]?\d+[^)]*\)\s?)*
    (?:(?:ERROR|WARNING|INFO|CRITICAL)\s\d\d-\d\d\s\d\d:\d\d:\d\d\s\[?[\w.]+:\d+\]\s?)?(?:\[rank\d+\]:\s?)?""",
    re.VERBOSE,
)
_MARKS = re.compile(r"[\s^~|]*")
_FOLLOWS = re.compile(
    r"(?i)see (?:root|stack|the|error)|engine process failed|initialization failed|dead"
    r"|task finished unexpectedly|actor died|died unexpectedly|loop is not running"
    r"|keyboardinterrupt|error raised in subprocess|calledprocesserror"
)


@dataclass(frozen=True)
class VllmCall:
    """A call in vLLM: path below ``vllm/``, function, and its line of code if the traceback shows
    it."""

    path: str
    function: str
    code: str = ""


@dataclass(frozen=True)
class Evidence:
    """A failure: exception with its message, and the calls in vLLM, the innermost last.

    ``about``: what the reporter says in his own words, such as the title of a report; ``models``:
    names of models in the log.
    """

    message: str
    places: tuple[VllmCall, ...]
    about: str = ""
    models: str = ""

    @property
    def is_follow_up(self) -> bool:
        """Whether the message only reports the end of something that failed before."""
        return _FOLLOWS.search(self.message) is not None


@dataclass
class _Open:
    places: list[VllmCall] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    """Of the failure and of those that it caused."""
    is_ended: bool = False


def read(text: str) -> list[Evidence]:
    """Return the failures in a log or a report that passed through vLLM, each with those that it
    caused.

    Excerpts that begin or end within a traceback, and ones without indentation, count too.
    """
    models = models_in(text)
    return [
        Evidence("\n".join(entry.messages)[:MAX_TEXT], tuple(entry.places), models=models)
        for entry in _read(text)
        if entry.places
    ]


def models_in(text: str) -> str:
    """Return the names of the models that a log or the commands in it load."""
    names = (match[1].rstrip("/").rpartition("/")[2] for match in _MODEL.finditer(text))
    return " ".join(list(dict.fromkeys(names))[:MAX_MODELS])


def _read(text: str) -> Iterator[_Open]:
    state, chained = _Open(), False
    lines = [_PREFIX.sub("", line) for line in text.splitlines()]
    for number, line in enumerate(lines):
        if _CHAIN.search(line):
            chained, state.is_ended = True, False
        elif _HEAD in line or (state.is_ended and _ANY_FRAME.search(line)):
            if not chained:
                yield state
                state = _Open()
            chained, state.is_ended = False, False
        if frame := _FRAME.search(line):
            function = (frame[2] or "").rpartition(".")[2]
            code = _code_below(lines, number)
            state.places.append(VllmCall(frame[1].replace("\\", "/"), function, code))
            continue
        found = None if state.is_ended else _EXCEPTION.search(line)
        if found and (found.start() < 4 or state.places):
            state.messages.append(_message(found, lines[number + 1 : number + 4]))
            state.is_ended = bool(state.places)
    yield state


def _code_below(lines: list[str], number: int) -> str:
    for line in lines[number + 1 : number + 4]:
        if _ANY_FRAME.search(line):
            return ""
        if not _MARKS.fullmatch(line):
            return line.strip()
    return ""


def _message(found: re.Match[str], after: list[str]) -> str:
    rest = (
        " ".join(after)
        if len(found[2] or "") < 40 and not any(map(_ANY_FRAME.search, after))
        else ""
    )
    return f"{found[1]}: {found[2] or ''} {rest}".strip()


def root(failures: Iterable[Evidence]) -> Evidence | None:
    """Return the first failure that is none of the kinds that follow from another one."""
    causes = [entry for entry in failures if not entry.is_follow_up]
    return next((entry for entry in causes if entry.message), causes[0] if causes else None)
