"""The same questions, asked of a whole engine or server: constrained and plain requests in one batch, and the engine must live on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..dialogue.chat import ChatCompletion
from ..engines.engine import Engine
from ..engines.server import Server
from ..engines.session import Session
from ..engines.spec import EngineSpec, Front
from ..engines.target import Target
from ..errors import ChildDied, ChildError, DeadlineExceeded, LimitExceeded, RemoteError
from ..schemas import validator
from .oracle import Outcome, Problem, Question, first_line, kind_of, quoted, violated

FRONTS: tuple[Front, ...] = ("offline", "serve")
_VLLM_NAMES = {"llguidance": "guidance"}
_PLAIN_TOKENS = 8
_PLAIN: dict[str, Any] = {"max_tokens": _PLAIN_TOKENS, "ignore_eos": True}


class EngineChecker:
    """Asks one backend through vLLM. An engine that dies or hangs is replaced for the next question."""

    def __init__(self, session: Session, target: Target, backend: str, front: Front, generation: str = "auto") -> None:
        self.front = front
        self._session, self._target = session, target
        self._spec = EngineSpec.create(
            structured_output_backend=_VLLM_NAMES.get(backend, backend), generation=generation
        )
        self._running()  # what cannot start is said at once

    def ask(self, question: Question) -> tuple[Problem, ...]:
        """Everything wrong with the answers to as many constrained requests as the question has walks, and with the plain ones among them."""
        try:
            found = list(self._asked(question))
            self._running().check()
            return tuple(sorted(found, key=lambda each: -list(Outcome).index(each.outcome)))
        except DeadlineExceeded as error:
            return (self._lost(Outcome.TIME_OUT, "time", error),)
        except LimitExceeded as error:
            return (self._lost(Outcome.OUT_OF_MEMORY, "memory", error),)
        except (ChildDied, RemoteError) as error:
            return (self._lost(Outcome.CRASH, kind_of("died", first_line(error.args[0])), error),)

    def _running(self) -> Engine | Server:
        return self._server() if self.front == "serve" else self._engine()

    def _engine(self) -> Engine:
        return self._session.engine(self._target, self._spec, user="fuzz", fresh=False)

    def _server(self) -> Server:
        return self._session.server(self._target, self._spec, user="fuzz", fresh=False)

    def _lost(self, outcome: Outcome, key: str, error: ChildError) -> Problem:
        self._session.drop(self._target, self._spec, self.front)
        return Problem(outcome, key, first_line(error.args[0]))

    def _asked(self, question: Question) -> Iterator[Problem]:
        prompts = [f"{question.seed} {number}" for number in range(max(1, question.walks))]
        most = 4 * question.max_tokens
        try:
            texts = (
                self._offline(question, prompts, most)
                if self.front == "offline"
                else self._served(question, prompts, most)
            )
        except RemoteError as error:
            if error.type_name == "http.500":
                raise
            yield Problem(
                Outcome.COMPILE_ERROR, kind_of(error.type_name, _reason(error)), f"refused by vLLM: {_reason(error)}"
            )
            return
        judge = validator(question.schema)
        for text in texts:
            if wrong := violated(judge, text):
                yield Problem(
                    Outcome.ACCEPTED_INVALID, wrong[0], f"the engine answered {quoted(text)}: {wrong[1]}", text
                )

    def _offline(self, question: Question, prompts: list[str], most: int) -> list[str]:
        engine = self._engine()
        constrained = {"max_tokens": most, "structured_outputs": {"json": dict(question.schema)}}
        asked = [each for prompt in prompts for each in ((prompt, constrained), (f"plain {prompt}", _PLAIN))]
        answers = [
            answer["outputs"][0]
            for answer in engine.generate([prompt for prompt, _ in asked], [sampling for _, sampling in asked])
        ]
        _expect_plain(len(answer["token_ids"]) for answer in answers[1::2])
        return [answer["text"] for answer in answers[::2] if answer["finish_reason"] == "stop"]

    def _served(self, question: Question, prompts: list[str], most: int) -> list[str]:
        server = self._server()
        form = {"type": "json_schema", "json_schema": {"name": "drawn", "schema": dict(question.schema)}}

        def ask(number: int) -> ChatCompletion:
            prompt = prompts[number // 2]
            options = _PLAIN if number % 2 else {"max_tokens": most, "response_format": form}
            return server.chat([{"role": "user", "content": prompt}], **options)

        with ThreadPoolExecutor(2 * len(prompts)) as pool:
            pending = [pool.submit(ask, number) for number in range(2 * len(prompts))]
            plain = [each.result() for each in pending[1::2]]
            answers = [each.result()["choices"][0] for each in pending[::2]]
        _expect_plain(answer["usage"]["completion_tokens"] for answer in plain)
        return [answer["message"]["content"] or "" for answer in answers if answer["finish_reason"] == "stop"]


def _expect_plain(counts: Iterable[int]) -> None:
    """Plain requests beside constrained ones get all they asked for."""
    wrong = [count for count in counts if count != _PLAIN_TOKENS]
    if wrong:
        raise ChildDied(
            f"a plain request beside a constrained one brought {wrong[0]} tokens, not {_PLAIN_TOKENS}", phase="request"
        )


def _reason(error: RemoteError) -> str:
    """What vLLM said: the message inside the HTTP body, where there is one."""
    text = str(error.args[0])
    with contextlib.suppress(ValueError, KeyError, TypeError):
        body = json.loads(text[text.index("{") :])
        return first_line(str(body.get("error", body).get("message", body)))
    return first_line(text.partition(": ")[2] or text)
