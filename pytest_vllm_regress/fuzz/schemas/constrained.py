"""Ask a whole engine or server: constrained and plain requests in one batch, which the engine must
survive."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...engines.engine import Engine
from ...engines.inputs.messages import ChatCompletion
from ...engines.server import Server
from ...engines.session import Session
from ...engines.spec import EngineSpec, Front
from ...engines.target import Target
from ...errors import ChildDied, DeadlineExceeded, LimitExceeded, RemoteError
from ..finding import Problem
from .backends import limit_problem
from .schema_judge import judge
from .schema_oracle import (
    Outcome,
    SchemaQuestion,
    error_kind,
    first_line,
    printable,
    worst_first,
)

FRONTS: tuple[Front, ...] = ("offline", "serve")
_VLLM_NAMES = {"llguidance": "guidance"}
_PLAIN_TOKENS = 8
_PLAIN: dict[str, Any] = {"max_tokens": _PLAIN_TOKENS, "ignore_eos": True}


class ConstrainedEngine:
    """Asks one backend through vLLM.

    An engine that dies or hangs is replaced for the next question.
    """

    def __init__(
        self, session: Session, target: Target, backend: str, front: Front, generation: str = "auto"
    ) -> None:
        self.front = front
        self._session, self._target = session, target
        self._spec = EngineSpec.create(
            structured_output_backend=_VLLM_NAMES.get(backend, backend), generation=generation
        )
        self._engine_or_server()  # fail at once if it cannot start

    def ask(self, question: SchemaQuestion) -> tuple[Problem, ...]:
        """Return all problems with the answers to one constrained and one plain request for each
        walk of the question."""
        try:
            problems = worst_first(self._problems(question))
            self._engine_or_server().check()
            return problems
        except DeadlineExceeded as error:
            failure = Problem(Outcome.TIME_OUT, first_line(error.args[0]), "time")
        except LimitExceeded as error:
            failure = limit_problem(error)
        except (ChildDied, RemoteError) as error:
            words = first_line(error.args[0])
            failure = Problem(Outcome.CRASH, words, error_kind("died", words))
        self._session.drop(self._target, self._spec, self.front)
        return (failure,)

    def _engine_or_server(self) -> Engine | Server:
        return self._server() if self.front == "serve" else self._engine()

    def _engine(self) -> Engine:
        running: Engine = self._session.start(
            "offline", self._target, self._spec, user="fuzz", fresh=False
        )
        return running

    def _server(self) -> Server:
        running: Server = self._session.start(
            "serve", self._target, self._spec, user="fuzz", fresh=False
        )
        return running

    def _problems(self, question: SchemaQuestion) -> Iterator[Problem]:
        prompts = [f"{question.seed} {number}" for number in range(max(1, question.walks))]
        max_tokens = 4 * question.max_tokens
        try:
            ask = self._served if self.front == "serve" else self._offline
            texts = ask(question, prompts, max_tokens)
        except RemoteError as error:
            if error.type_name == "http.500":
                raise
            reason = _reason(error)
            key = error_kind(error.type_name, reason)
            yield Problem(Outcome.COMPILE_ERROR, f"refused by vLLM: {reason}", key)
            return
        for text, violation in zip(texts, judge().violations(question.schema, texts), strict=True):
            if violation:
                keyword, message = violation
                words = f"the engine answered {printable(text)}: {message}"
                yield Problem(Outcome.ACCEPTED_INVALID, words, keyword, text)

    def _offline(self, question: SchemaQuestion, prompts: list[str], max_tokens: int) -> list[str]:
        engine = self._engine()
        constrained = {
            "max_tokens": max_tokens,
            "structured_outputs": {"json": dict(question.schema)},
        }
        texts = [text for prompt in prompts for text in (prompt, f"plain {prompt}")]
        results = engine.generate(texts, [constrained, _PLAIN] * len(prompts))
        answers = [result["outputs"][0] for result in results]
        _expect_plain(len(answer["token_ids"]) for answer in answers[1::2])
        return [answer["text"] for answer in answers[::2] if answer["finish_reason"] == "stop"]

    def _served(self, question: SchemaQuestion, prompts: list[str], max_tokens: int) -> list[str]:
        server = self._server()
        form = {
            "type": "json_schema",
            "json_schema": {"name": "drawn", "schema": dict(question.schema)},
        }

        def ask(number: int) -> ChatCompletion:
            prompt = prompts[number // 2]
            options = _PLAIN if number % 2 else {"max_tokens": max_tokens, "response_format": form}
            return server.chat([{"role": "user", "content": prompt}], **options)

        with ThreadPoolExecutor(2 * len(prompts)) as pool:
            pending = [pool.submit(ask, number) for number in range(2 * len(prompts))]
            plain = [future.result() for future in pending[1::2]]
            answers = [future.result()["choices"][0] for future in pending[::2]]
        _expect_plain(answer["usage"]["completion_tokens"] for answer in plain)
        return [
            answer["message"]["content"] or ""
            for answer in answers
            if answer["finish_reason"] == "stop"
        ]


def _expect_plain(counts: Iterable[int]) -> None:
    """Raise ``ChildDied`` unless every plain request got all the tokens it asked for."""
    wrong_counts = [count for count in counts if count != _PLAIN_TOKENS]
    if wrong_counts:
        raise ChildDied(
            f"a plain request next to a constrained one returned {wrong_counts[0]} tokens, not {_PLAIN_TOKENS}",
            phase="request",
        )


def _reason(error: RemoteError) -> str:
    """Return vLLM's message: from the HTTP body if there is one."""
    text = str(error.args[0])
    with contextlib.suppress(ValueError, KeyError, TypeError):
        body = json.loads(text[text.index("{") :])
        return first_line(str(body.get("error", body).get("message", body)))
    return first_line(text.partition(": ")[2] or text)
