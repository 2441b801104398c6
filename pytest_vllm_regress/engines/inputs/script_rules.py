"""Which request of a client gets which script: ``Server.script``.

A request's script is written to a file that the request's id names. The client's prompt and the
token counts of the answer stay as they are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from types import TracebackType
from typing import Any

from ...errors import ScriptError, UsageError
from ...target_site.vllm_regress_target import script_format
from ...util.validation import format_value
from .client_request import ClientRequest
from .script import NO_SCRIPTED_BEAMS, CallWriter, Script, ScriptWatch

Answer = Script | str | tuple[Script | str, ...] | None
"""What the model answers to one request: a script or a text, one for each choice, or None for an
answer of its own."""
Callback = Callable[[ClientRequest], Answer]
Answers = Answer | list[Answer] | Mapping[str, Answer | list[Answer]] | Callback
"""What the model answers to several requests: the next answer in order, the answers of each turn by
a text of the conversation, or a function of the request."""


_REPEATED = (
    ". The same request has been answered before; to answer it each time, as for a client that "
    'repeats requests, script by turn: server.script({"": [...]})'
)


class NoAnswer(ScriptError):
    """No answer was scripted for a request. The client gets status 400 with this message."""


class ScriptRule(AbstractContextManager["ScriptRule"]):
    """Answers for requests, until the end of the test, or of the ``with`` block if there is one.

    ``requests``: those that were answered so far. At the end of the block ``ScriptError`` is raised
    if a script could not be followed.
    """

    def __init__(self, answers: Answers, end: Callable[[ScriptRule], None]) -> None:
        self.requests: list[ClientRequest] = []
        self._end = end
        self._callback: Callback | None = None
        self._turns: Mapping[str, list[Answer]] | None = None
        self._queue: deque[Answer] = deque()
        self.has_block = False
        if isinstance(answers, Mapping):
            self._turns = {text: _listed(turns) for text, turns in answers.items()}
        elif callable(answers):
            self._callback = answers
        else:
            self._queue.extend(_listed(answers))

    @property
    def is_queue(self) -> bool:
        """Whether its answers are for the next requests, whatever they are."""
        return self._callback is None and self._turns is None

    def take(self, request: ClientRequest) -> tuple[bool, Answer]:
        """Return whether it has an answer to a request, and which."""
        if self._callback is not None:
            answer = self._callback(request)
            return answer is not None, answer
        if self._turns is not None:
            for text, turns in self._turns.items():
                if text in request.conversation:
                    if request.turn >= len(turns):
                        raise NoAnswer(
                            f"turn {request.turn} of the conversation with {text!r} has no scripted answer: {len(turns)} were given"
                        )
                    return True, turns[request.turn]
            return False, None
        return (True, self._queue.popleft()) if self._queue else (False, None)

    def give_back(self, answer: Answer) -> None:
        """Keep an answer for the next request, because the one that took it has failed."""
        if self.is_queue:
            self._queue.appendleft(answer)

    def __enter__(self) -> ScriptRule:
        self.has_block = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end(self)
        except ScriptError as found:
            raise found from error


@dataclass(frozen=True)
class ScriptedRequest:
    """A request that follows a script. ``request_id``: what the server must take for its id."""

    request_id: str
    used: Path
    give_back: Callable[[], None]


@dataclass
class ScriptBook:
    """The answers that tests have scripted for one server. Threads may share it.

    ``write``: how the model of the server writes calls of tools.
    """

    watch: ScriptWatch
    write: CallWriter
    _rules: list[ScriptRule] = field(default_factory=list)
    _count: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def is_empty(self) -> bool:
        return not self._rules

    def add(self, answers: Answers) -> ScriptRule:
        """Add answers. Those that were added first are used first."""
        self.watch.admit_scripts()
        rule = ScriptRule(answers, self._end)
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forget all answers but those of ``with`` blocks."""
        with self._lock:
            self._rules = [rule for rule in self._rules if rule.has_block]

    def take(self, request: ClientRequest) -> ScriptedRequest | None:
        """Return the script for a request; None if the model is to answer as it likes.

        Raises ``NoAnswer`` if all answers are spent or one cannot be given, which is also noted as
        an error of the test.
        """
        if not request.generates:
            return None
        with self._lock:
            self._count += 1
            try:
                return self._taken(request)
            except Exception as error:
                name = f"{self._count} ({request.path})"
                is_ours = isinstance(error, NoAnswer | UsageError)
                problem = str(error) if is_ours else f"the callback raised {error!r}"
                self.watch.note(name, problem)
                raise NoAnswer(problem) from error

    def close(self, scripted: ScriptedRequest, path: str, *, succeeded: bool) -> None:
        """A request has ended. If it failed, the next one gets its answer."""
        if not succeeded:
            with self._lock:
                scripted.give_back()
        elif not scripted.used.exists():
            self.watch.note(
                scripted.request_id,
                f"this release does not pass the id of a request to {path} on, so it cannot be scripted",
            )
        scripted.used.unlink(missing_ok=True)

    def _taken(self, request: ClientRequest) -> ScriptedRequest | None:
        for rule in self._rules:
            has_answer, answer = rule.take(request)
            if has_answer:
                break
        else:
            queues = [rule for rule in self._rules if rule.is_queue]
            if not queues:
                return None
            repeats = any(request.body == other.body for rule in queues for other in rule.requests)
            raise NoAnswer(f"no scripted answer is left{_REPEATED if repeats else ''}")
        rule.requests.append(request)
        if answer is None:
            return None
        if request.body.get("use_beam_search"):
            raise UsageError(NO_SCRIPTED_BEAMS)
        choices = answer if isinstance(answer, tuple) else (answer,)
        text = script_format.encode(
            (Script.text(choice) if isinstance(choice, str) else choice)
            .in_order_of(request)
            .answer(request.tool_choice, self.write)
            for choice in choices
        )
        return self._written(text, rule, answer, request)

    def _written(
        self, text: str, rule: ScriptRule, answer: Answer, request: ClientRequest
    ) -> ScriptedRequest:
        folder = self.watch.folder
        folder.mkdir(exist_ok=True)
        file = folder / script_format.file_name(text)
        if not file.exists():
            file.write_text(text, encoding="ascii")
        request_id = script_format.request_id(text, self._count)

        def give_back() -> None:
            rule.requests.remove(request)
            rule.give_back(answer)

        return ScriptedRequest(
            request_id, folder / (request_id + script_format.USED_SUFFIX), give_back
        )

    def _end(self, rule: ScriptRule) -> None:
        with self._lock:
            if rule in self._rules:
                self._rules.remove(rule)
        self.watch.check()


def _listed(answers: Any) -> list[Answer]:
    listed = list(answers) if isinstance(answers, list) else [answers]
    for answer in listed:
        for choice in answer if isinstance(answer, tuple) else (answer,):
            if not isinstance(choice, Script | str | None):
                raise UsageError(
                    f"server.script: {format_value(choice)} is not an answer: give a text, a Script, "
                    "None, a tuple of them for several choices, or a list of answers"
                )
    return listed


def answers_from(value: object) -> Answers:
    """Return the answers that a JSON document describes. Raises ``UsageError``.

    A text; ``{"value": ...}`` for a JSON value under a schema; ``{"text": ..., "tool_calls":
    [{"name": ..., "arguments": {...}}]}``; ``{"template": "You said $text"}`` for every request,
    with $text, $conversation, $turn and $path of the request; null; a list for several requests, in
    which a list stands for several choices; or ``{"turns": {TEXT: list}}`` for the turns of
    conversations that contain a text.
    """
    if isinstance(value, list):
        return [
            tuple(_answer_from(choice) or "" for choice in item)
            if isinstance(item, list)
            else _answer_from(item)
            for item in value
        ]
    if isinstance(value, Mapping) and isinstance(value.get("template"), str):
        template = Template(value["template"])
        return lambda request: template.safe_substitute(
            text=request.text,
            conversation=request.conversation,
            turn=request.turn,
            path=request.path,
        )
    if isinstance(value, Mapping) and isinstance(value.get("turns"), Mapping):
        return {text: _listed(answers_from(turns)) for text, turns in value["turns"].items()}
    return _answer_from(value)


def _answer_from(value: object) -> Script | str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping) and value.keys() == {"value"}:
        return Script.value(value["value"])
    if isinstance(value, Mapping) and value.keys() <= {"text", "tool_calls"} and value:
        script = Script.text(str(value.get("text", "")))
        for call in value.get("tool_calls", ()):
            if not (isinstance(call, Mapping) and call.keys() == {"name", "arguments"}):
                raise UsageError(f"script: {format_value(call)} is not name and arguments")
            script = script.then(Script.tool_call(call["name"], call["arguments"]))
        return script
    raise UsageError(
        f"script: {format_value(value)} is no answer: allowed are texts, null, lists, and objects with text and tool_calls, value, template or turns"
    )
