"""Scripted answers: what a test wants the simulated model to say, and what became of it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checkpoints import mistral
from ..checkpoints.tokenizers import added_tokens
from ..errors import ScriptError, Unsupported, UsageError
from ..target_site.vllm_regress_target.script import END, FAULTS_VARIABLE, START, Answer, Step, Token, encode
from ..target_site.vllm_regress_target.vocabularies import TEKKEN, TOKENIZER
from ..util.files import read_bounded

NO_SCRIPTED_BEAMS = "beam_search: a script cannot be followed, since beams are sent as prompts of their own"
_MAX_TOKENIZER = 256 * 1024 * 1024

_NAMES = {*added_tokens(), *mistral.CONTROL}
_ADDED = re.compile("|".join(map(re.escape, sorted(_NAMES, key=len, reverse=True))))
_LAST = max(added_tokens().values())
_MOST_READ = 1 << 16  # bytes of notes


@dataclasses.dataclass(frozen=True)
class Script:
    """What the simulated model answers to one prompt. Everything around the model is stock vLLM.

    Made by ``text``, ``raw``, ``tokens`` and ``either``, joined by ``then``; ``prompt`` puts it into a prompt. ``end``: the end token follows;
    with ``end=False`` the script is said over and over until something else ends the answer (max_tokens, a stop string).
    Once at its end, a script says the end token for as long as it is asked.
    """

    steps: tuple[Step, ...] = ()
    end: bool = True

    @classmethod
    def text(cls, text: str, *, end: bool = True) -> Script:
        """Say ``text``: a token for each byte of its UTF-8, but one for each special token and parser's marker (``<think>``, ``<tool_call>`` ...)
        that the model's tokenizer has."""
        return cls(tuple(((token, 1.0),) for token in _tokens(text)), end)

    @classmethod
    def raw(cls, data: bytes, *, end: bool = True) -> Script:
        """Say these bytes, a token for each; they may be ill-formed UTF-8."""
        return cls.tokens(data, end=end)

    @classmethod
    def tokens(cls, tokens: Iterable[int], *, end: bool = True) -> Script:
        """Say these tokens of the forged vocabulary, in which tokens 0 to 255 are the bytes. In Mistral's they come behind the control tokens."""
        return cls(tuple(((_token(token), 1.0),) for token in tokens), end)

    @classmethod
    def either(cls, shares: Mapping[str | int, float], *, end: bool = True) -> Script:
        """One token of several, with the probabilities that log-probabilities show; at temperature 0 the likeliest is said.

        Keys are token ids or texts of one token. Raises ``UsageError`` where the probabilities are not positive or do not add up to one.
        """
        if not shares or any(not share > 0 for share in shares.values()) or not math.isclose(sum(shares.values()), 1):
            raise UsageError(f"Script.either: probabilities are above 0 and add up to 1, not {dict(shares)!r}")
        return cls((tuple((_single(token), float(share)) for token, share in shares.items()),), end)

    def then(self, more: Script | str) -> Script:
        """This script and ``more`` after it; how that ends is how the whole ends."""
        more = Script.text(more) if isinstance(more, str) else more
        return Script(self.steps + more.steps, more.end)

    def prompt(self, text: str = "", *others: Script) -> str:
        """A prompt, or the content of a message, that begins with ``text`` and makes the model say this.

        ``others`` are what the further choices of the request say (``n`` above 1); without them every choice says the same. The last script of a
        prompt or conversation counts. It takes about a token for each of its own.
        """
        if not (self.end or self.steps):
            raise UsageError("a script that never ends needs something to say")
        answers = (Answer(script.steps, script.end) for script in (self, *others))
        return f"{text}{START}{encode(answers)}{END}"


class ScriptWatch:
    """What an engine does with scripts: whether it can say them, and notes of those it could not say.

    ``refusal``: why this engine says no scripts, or empty. ``notes``: the file in which its workers write.
    """

    def __init__(self, refusal: str, notes: Path) -> None:
        self._refusal = refusal
        self._notes = notes
        self._read = 0

    @classmethod
    def of(cls, request: Mapping[str, Any], notes: Path) -> ScriptWatch:
        """The watch of the engine that ``request`` (a spec as the dialect reads it) starts."""
        if request["device"] != "sim":
            return cls(f"a script is said by the simulated device only; this is device {request['device']}", notes)
        if not _has_markers(Path(str(request["model_path"]))):
            return cls(f"a script needs a forged checkpoint; {request['model_path']} has no token {START}", notes)
        return cls("", notes)

    @property
    def environment(self) -> dict[str, str]:
        """What the engine's processes are told."""
        return {FAULTS_VARIABLE: str(self._notes)}

    def admit(self, asked: object) -> None:
        """Raise ``Unsupported`` where ``asked`` holds a script that this engine cannot say."""
        if self._refusal and holds_script(asked):
            raise Unsupported(self._refusal, needs="the simulated device and a forged checkpoint")

    def check(self) -> None:
        """Raise ``ScriptError`` where a script could not be said since the last check."""
        start = self._read  # several threads may look at once
        try:
            with self._notes.open("rb") as file:
                file.seek(start)
                found = file.read(_MOST_READ)
        except FileNotFoundError:
            return
        whole = found[: found.rfind(b"\n") + 1]
        self._read = start + len(whole)
        if whole:
            raise ScriptError("\n".join(_fault(line) for line in whole.decode(errors="replace").splitlines()))


def holds_script(asked: object) -> bool:
    """Whether a prompt, or what holds prompts, has a script in it."""
    return any(START in text for text in _texts(asked))


def _fault(line: str) -> str:
    try:
        return _words(json.loads(line))
    except (ValueError, TypeError, KeyError):
        return f"a script could not be said, and the worker's note of it is unreadable: {line[:200]!r}"


def _words(facts: dict[str, Any]) -> str:
    head = f"the script of request {facts['request']} could not be said"
    if "problem" in facts:
        return f"{head}: {facts['problem']}"
    why = {
        "masked": "its grammar, or what else masks tokens, forbids it there",
        "sampled": "the sampling parameters made the other likelier: penalties, a bias, a list of allowed tokens, a high temperature",
    }[facts["why"]]
    return f"{head}: at token {facts['position']}, after {facts['said']!r}, wanted {facts['wanted']!r}, got {facts['got']!r}: {why}"


def _tokens(text: str) -> Iterator[Token]:
    place = 0
    try:
        for found in _ADDED.finditer(text):
            yield from text[place : found.start()].encode()
            yield found.group()
            place = found.end()
        yield from text[place:].encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"Script.text: {error}. Ill-formed UTF-8 is said by Script.raw") from None


def _token(token: int) -> int:
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= _LAST:
        raise UsageError(f"{token!r} is not a token of the forged vocabulary: they go from 0 to {_LAST}")
    return token


def _single(token: str | int) -> Token:
    if isinstance(token, int):
        return _token(token)
    several: Sequence[Token] = tuple(_tokens(token))
    if len(several) != 1:
        raise UsageError(f"Script.either: {token!r} is {len(several)} tokens; give texts of one token, or token ids")
    return several[0]


def _has_markers(model: Path) -> bool:
    try:
        return any(
            START.encode() in read_bounded(model / name, _MAX_TOKENIZER)
            for name in (TOKENIZER, TEKKEN)
            if (model / name).exists()
        )
    except UsageError:
        return False


def _texts(asked: object) -> Iterator[str]:
    if isinstance(asked, str):
        yield asked
    elif isinstance(asked, Mapping):
        for each in asked.values():
            yield from _texts(each)
    elif isinstance(asked, Iterable) and not isinstance(asked, bytes):
        for each in asked:
            yield from _texts(each)
