"""Ask a whole engine or server: constrained and plain requests in one batch, which the engine must
survive."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..engines.engine import Engine
from ..engines.inputs.messages import ChatCompletion
from ..engines.server import Server
from ..engines.session import Session
from ..engines.spec import EngineSpec, Front
from ..engines.target import Target
from ..errors import ChildDied, ChildError, DeadlineExceeded, LimitExceeded, RemoteError
from .checker import limit_problem
from .oracle import Outcome, Problem, Question, error_kind, first_line, printable
from .schema_judge import judge

FRONTS: tuple[Front, ...] = ("offline", "serve")
_VLLM_NAMES = {"llguidance": "guidance"}
_PLAIN_TOKENS = 8
_PLAIN: dict[str, Any] = {"max_tokens": _PLAIN_TOKENS, "ignore_eos": True}


class EngineChecker:
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

    def ask(self, question: Question) -> tuple[Problem, ...]:
        """Return all problems with the answers to one constrained and one plain request for each
        walk of the question."""
        try:
            problems = list(self._problems(question))
            self._engine_or_server().check()
            return tuple(
                sorted(problems, key=lambda problem: -list(Outcome).index(problem.outcome))
            )
        except DeadlineExceeded as error:
            return (self._failure(Outcome.TIME_OUT, "time", error),)
        except LimitExceeded as error:
            problem = limit_problem(error)
            return (self._failure(problem.outcome, problem.key, error),)
        except (ChildDied, RemoteError) as error:
            return (
                self._failure(Outcome.CRASH, error_kind("died", first_line(error.args[0])), error),
            )

    def _engine_or_server(self) -> Engine | Server:
        return self._server() if self.front == "serve" else self._engine()

    def _engine(self) -> Engine:
        return self._session.engine(self._target, self._spec, user="fuzz", fresh=False)

    def _server(self) -> Server:
        return self._session.server(self._target, self._spec, user="fuzz", fresh=False)

    def _failure(self, outcome: Outcome, key: str, error: ChildError) -> Problem:
        """Discard the engine and return its error as a problem."""
        self._session.drop(self._target, self._spec, self.front)
        return Problem(outcome, key, first_line(error.args[0]))

    def _problems(self, question: Question) -> Iterator[Problem]:
        prompts = [f"{question.seed} {number}" for number in range(max(1, question.walks))]
        max_tokens = 4 * question.max_tokens
        try:
            texts = (
                self._offline(question, prompts, max_tokens)
                if self.front == "offline"
                else self._served(question, prompts, max_tokens)
            )
        except RemoteError as error:
            if error.type_name == "http.500":
                raise
            yield Problem(
                Outcome.COMPILE_ERROR,
                error_kind(error.type_name, _reason(error)),
                f"refused by vLLM: {_reason(error)}",
            )
            return
        for text, violation in zip(texts, judge().violations(question.schema, texts), strict=True):
            if violation:
                keyword, message = violation
                yield Problem(
                    Outcome.ACCEPTED_INVALID,
                    keyword,
                    f"the engine answered {printable(text)}: {message}",
                    text,
                )

    def _offline(self, question: Question, prompts: list[str], max_tokens: int) -> list[str]:
        engine = self._engine()
        constrained = {
            "max_tokens": max_tokens,
            "structured_outputs": {"json": dict(question.schema)},
        }
        requests = [
            request
            for prompt in prompts
            for request in ((prompt, constrained), (f"plain {prompt}", _PLAIN))
        ]
        answers = [
            answer["outputs"][0]
            for answer in engine.generate(
                [prompt for prompt, _ in requests], [sampling for _, sampling in requests]
            )
        ]
        _expect_plain(len(answer["token_ids"]) for answer in answers[1::2])
        return [answer["text"] for answer in answers[::2] if answer["finish_reason"] == "stop"]

    def _served(self, question: Question, prompts: list[str], max_tokens: int) -> list[str]:
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
