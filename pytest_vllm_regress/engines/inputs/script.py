"""Scripted answers: how the model says a script, what a test makes the simulated model generate, and
whether the model could follow the script.

The script is part of the prompt, or the id of a client's request names it
(``target_site/.../script_format.py`` has its format). The simulated
worker finds it there and gives the script's tokens by far the largest logits
(``sim/scripted_logits.py``); sampling stays vLLM's own. If another token is generated, because a
grammar forbids the wanted one or a sampling parameter moved the choice, or if the prompt was cut,
the worker notes it in a file. ``ScriptWatch.check`` reads that after each request and when a test
gives its engine back, and raises ``ScriptError``. An engine that cannot follow scripts (no
simulated device, a foreign checkpoint) refuses the request with ``Unsupported`` before it is sent.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...errors import ScriptError, Unsupported, UsageError
from ...target_site.vllm_regress_target.script_format import (
    END,
    FOLDER_SUFFIX,
    NOTES_VARIABLE,
    START,
    ScriptedAnswer,
    Step,
    Token,
    encode,
)
from ...target_site.vllm_regress_target.vocabularies import TEKKEN, TOKENIZER
from ...util.codec import replace
from ...util.files import read_bounded
from ..checkpoints.tokenizers import added_tokens, tokens
from .client_request import ClientRequest, ToolChoice, in_order
from .formats import FunctionCall

NO_SCRIPTED_BEAMS = (
    "beam_search: a script cannot be followed, because each beam is sent as a new prompt"
)
_MAX_TOKENIZER = 256 * 1024 * 1024

_MAX_READ = 1 << 16  # bytes of notes


class CallWriter(Protocol):
    """Writes calls of tools as the model of one server must write them."""

    def __call__(self, calls: Sequence[FunctionCall], choice: ToolChoice) -> str: ...


@dataclass(frozen=True)
class Script:
    """The simulated model's answer to one prompt. Everything around the model is stock vLLM.

    Make one with ``text``, ``raw``, ``tokens``, ``either``, ``value`` or ``tool_call``, join them
    with ``then``, and give it to ``Server.script``, or put it into a prompt with ``prompt``.
    ``end``: the end token follows. With ``end=False`` the script repeats until something else ends
    the answer (max_tokens, a stop string). After the end of a script the model generates the end
    token only.
    """

    steps: tuple[Step, ...] = ()
    end: bool = True
    calls: tuple[FunctionCall, ...] = ()
    choice: ToolChoice | None = None
    values: tuple[Any, ...] = ()

    @classmethod
    def text(cls, text: str, *, end: bool = True) -> Script:
        """Generate ``text``: one token per byte of its UTF-8, and one for each special token or
        marker of a parser (``<think>``, ``<tool_call>``
        ...) of the model's tokenizer."""
        return cls(tuple(((token, 1.0),) for token in _tokens(text)), end)

    @classmethod
    def raw(cls, data: bytes, *, end: bool = True) -> Script:
        """Generate these bytes, one token each. They may be ill-formed UTF-8."""
        return cls.tokens(data, end=end)

    @classmethod
    def tokens(cls, tokens: Iterable[int], *, end: bool = True) -> Script:
        """Generate these tokens of the forged vocabulary, in which tokens 0 to 255 are the bytes.
        In Mistral's tokenizer they follow the control
        tokens."""
        return cls(tuple(((_token(token), 1.0),) for token in tokens), end)

    @classmethod
    def either(cls, shares: Mapping[str | int, float], *, end: bool = True) -> Script:
        """Generate one of several tokens with these probabilities, which also appear as
        log-probabilities. Temperature 0 selects the likeliest.

        Keys are token ids or texts of one token. Raises ``UsageError`` if the probabilities are not
        positive or do not add up to one.
        """
        if (
            not shares
            or any(not share > 0 for share in shares.values())
            or not math.isclose(sum(shares.values()), 1)
        ):
            raise UsageError(
                f"Script.either: probabilities must be above 0 and add up to 1, not {dict(shares)!r}"
            )
        return cls((tuple((_single(token), float(share)) for token, share in shares.items()),), end)

    @classmethod
    def value(cls, value: Any) -> Script:
        """Generate a JSON value as a grammar wants it: without spaces, which every backend of every
        release allows, and by ``Server.script`` with its keys in the order of the request's schema.

        After it nothing else may be said.
        """
        return cls(values=(value,))

    @classmethod
    def tool_call(
        cls, name: str, arguments: Mapping[str, Any], *, choice: ToolChoice | None = None
    ) -> Script:
        """Call a tool, in the text that the server's tool parser reads.

        A server whose release takes plain JSON where a call is required, or a function named, gets
        that. ``choice`` replaces the ``tool_choice`` of the request. Calls are joined by ``then``;
        after them nothing else may be said. Only ``Server.script`` can tell parser and release, so
        ``prompt`` raises ``UsageError``.
        """
        return cls(calls=(FunctionCall(name, dict(arguments)),), choice=choice)

    def then(self, more: Script | str) -> Script:
        """Return this script followed by ``more``, which also determines how the whole script ends."""
        more = Script.text(more) if isinstance(more, str) else more
        if self.values or (self.calls and (more.steps or more.values)):
            only = "nothing" if self.values else "only a further tool call"
            said = "a value" if self.values else "a tool call"
            raise UsageError(f"Script: {only} may follow {said}")
        choice = self.choice if more.choice is None else more.choice
        calls = self.calls + more.calls
        return Script(self.steps + more.steps, more.end, calls, choice, more.values)

    def in_order_of(self, request: ClientRequest) -> Script:
        """Return the script with the keys of its value, and of the arguments of its calls, in the
        order in which the schemas in a request name them."""
        calls = tuple(
            replace(call, arguments=in_order(call.arguments, request.parameters(call.name)))
            for call in self.calls
        )
        values = tuple(in_order(value, request.schema) for value in self.values)
        return dataclasses.replace(self, calls=calls, values=values)

    def answer(self, choice: ToolChoice, write: CallWriter) -> ScriptedAnswer:
        """Return the script for a request with this ``tool_choice``, with its calls as ``write``
        writes them."""
        steps = self.steps
        if self.calls:
            steps += Script.text(write(self.calls, self.choice or choice)).steps
        for value in self.values:
            written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            steps += Script.text(written).steps
        if not (self.end or steps):
            raise UsageError("a script that never ends must not be empty")
        return ScriptedAnswer(steps, self.end)

    def prompt(self, text: str = "", *further: Script) -> str:
        """Return a prompt, or the content of a message, that begins with ``text`` and makes the
        model generate this script.

        ``further``: the scripts of the request's further choices (``n`` above 1); without them all
        choices are equal. The last script of a prompt or conversation counts. In the prompt it
        takes about as many tokens as it generates.
        """
        answers = (script.answer("auto", _in_no_prompt) for script in (self, *further))
        return f"{text}{START}{encode(answers)}{END}"


def _in_no_prompt(calls: Sequence[FunctionCall], choice: ToolChoice) -> str:
    raise UsageError(
        f"Script.tool_call({calls[0].name!r}) in a prompt: how the model writes a call depends on the "
        "server: use server.script"
    )


class ScriptWatch:
    """Checks an engine's scripts: whether it can follow scripts at all, and which it could not
    follow.

    ``refusal``: why this engine cannot follow scripts, or empty. ``notes``: the file in which its
    workers report scripts that they could not follow.
    """

    def __init__(self, refusal: str, notes: Path, device: str) -> None:
        self._refusal = refusal
        self._device = device
        self._notes = notes
        self._read = 0

    @classmethod
    def of(cls, request: Mapping[str, Any], notes: Path) -> ScriptWatch:
        """Return the watch for the engine that ``request`` (see ``EngineSpec.as_request``) starts."""
        device, refusal = str(request["device"]), ""
        if device != "sim":
            refusal = f"only the simulated device follows scripts; this is device {device}"
        elif not _has_markers(Path(str(request["model_path"]))):
            model = request["model_path"]
            refusal = f"a script needs a forged checkpoint; {model} has no token {START}"
        return cls(refusal, notes, device)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the engine's processes."""
        return {NOTES_VARIABLE: str(self._notes)}

    @property
    def folder(self) -> Path:
        """The folder of the scripts that ids of requests name."""
        return self._notes.with_name(self._notes.name + FOLDER_SUFFIX)

    def note(self, request: str, problem: str) -> None:
        """Note that a request could not follow its script, as a worker does."""
        line = json.dumps({"request": request, "problem": problem})
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def admit(self, request: object) -> None:
        """Raise ``Unsupported`` if ``request`` contains a script that this engine cannot follow."""
        if holds_script(request):
            self.admit_scripts()

    def admit_scripts(self) -> None:
        """Raise ``Unsupported`` if this engine cannot follow scripts."""
        if self._refusal:
            needs = "the simulated device and a forged checkpoint"
            raise Unsupported(self._refusal, needs=needs, device=self._device)

    def check(self) -> None:
        """Raise ``ScriptError`` if a script could not be followed since the last check."""
        start = self._read  # several threads may check at once
        try:
            with self._notes.open("rb") as file:
                file.seek(start)
                notes = file.read(_MAX_READ)
        except FileNotFoundError:
            return
        complete_lines = notes[: notes.rfind(b"\n") + 1]
        self._read = start + len(complete_lines)
        if complete_lines:
            raise ScriptError(
                "\n".join(
                    _problem(line) for line in complete_lines.decode(errors="replace").splitlines()
                )
            )


def holds_script(request: object) -> bool:
    """Return whether a prompt, or a structure that contains prompts, has a script in it."""
    return any(START in text for text in _texts(request))


def _problem(line: str) -> str:
    try:
        return _describe(json.loads(line))
    except (ValueError, TypeError, KeyError):
        return f"a script could not be followed, and the worker's note about it is unreadable: {line[:200]!r}"


def _describe(facts: dict[str, Any]) -> str:
    head = f"the script of request {facts['request']} could not be followed"
    if "problem" in facts:
        return f"{head}: {facts['problem']}"
    why = {
        "masked": f"its grammar, or something else that masks tokens, allows only {_allowed(facts)} there",
        "sampled": "the sampling parameters made another token likelier: penalties, a bias, a list of allowed tokens, a high temperature",
    }[facts["why"]]
    return f"{head}: at token {facts['position']}, after {facts['said']!r}, wanted {facts['wanted']!r}, got {facts['got']!r}: {why}"


def _allowed(facts: Mapping[str, Any]) -> str:
    return " ".join(repr(text) if text != "..." else text for text in facts["allowed"]) or "nothing"


def _tokens(text: str) -> Iterator[Token]:
    place = 0
    try:
        for match in _added()[0].finditer(text):
            yield from text[place : match.start()].encode()
            yield match.group()
            place = match.end()
        yield from text[place:].encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"Script.text: {error}. Use Script.raw for ill-formed UTF-8") from None


@functools.cache
def _added() -> tuple[re.Pattern[str], int]:
    """Return a pattern of the tokens that are names, and the number of the last of them."""
    names = sorted({*added_tokens(), *tokens("control")}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names))), max(added_tokens().values())


def _token(token: int) -> int:
    _, last = _added()
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= last:
        raise UsageError(
            f"{token!r} is not a token of the forged vocabulary, which has tokens 0 to {last}"
        )
    return token


def _single(token: str | int) -> Token:
    if isinstance(token, int):
        return _token(token)
    tokens: Sequence[Token] = tuple(_tokens(token))
    if len(tokens) != 1:
        raise UsageError(
            f"Script.either: {token!r} is {len(tokens)} tokens; give texts of one token, or token ids"
        )
    return tokens[0]


def _has_markers(model: Path) -> bool:
    try:
        return any(
            START.encode() in read_bounded(model / name, _MAX_TOKENIZER)
            for name in (TOKENIZER, TEKKEN)
            if (model / name).exists()
        )
    except UsageError:
        return False


def _texts(request: object) -> Iterator[str]:
    if isinstance(request, str):
        yield request
    elif isinstance(request, Mapping):
        for value in request.values():
            yield from _texts(value)
    elif isinstance(request, Iterable) and not isinstance(request, bytes):
        for item in request:
            yield from _texts(item)
