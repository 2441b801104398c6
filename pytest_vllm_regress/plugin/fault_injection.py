"""Injects an impostor's failure between a test and its target, so that test, engine and verdict are
the real ones."""

from __future__ import annotations

import contextlib
import json
import signal
from typing import Any

import httpx

from ..cases.model import Case
from ..cases.proofs.impostors import UNRELATED_MESSAGE, Impostor, impostor_of_kind
from ..engines.engine import AsyncEngine, Engine
from ..engines.processes import process_tree
from ..engines.processes.child import Child, Interceptor
from ..engines.server import Server
from ..errors import ChildDied, DeadlineExceeded, Masked, Part, ProtocolError, RemoteError
from ..util.deadline import Deadline

SHORT_S = 3.0
"""Seconds after which a stopped engine counts as hung: it will not answer, and only its dossier is
needed."""
LEFT_ALONE = ("/health", "/metrics")
_NOBODY = "no_such_argument"
_EMPTY = {"id": "", "object": "", "created": 0, "model": "", "choices": [], "usage": {}}
_WRONG_VALUE = "many"
_WRONG = dict.fromkeys(
    (
        "max_tokens",
        "max_output_tokens",
        "tokens",
        "token_ids",
        "encoding_format",
        "truncate_prompt_tokens",
    ),
    _WRONG_VALUE,
)
"""Most addresses that take a request reject one of these, and ignore those of other addresses."""
_ASKED_BY_TESTS = ("generate", "chat", "call")
_BEFORE_REQUESTS = frozenset({"import", "start", "ready"})


class FaultInjection:
    """One impostor in one leg: it replaces every answer of the target.

    ``injected``: there was a request to replace. ``replaced``: the calls that it replaced.
    ``ignored``: those whose address ignored the wrong argument, so that the request did what it
    does without it.
    """

    def __init__(self, impostor: Impostor, case: Case, flood: str) -> None:
        self.impostor = impostor
        self.acts_as = impostor_of_kind(case) if impostor is Impostor.FLOODED_LOG else impostor
        self.injected = False
        self.replaced: list[str] = []
        self.ignored: list[str] = []
        self._flood = flood if impostor is Impostor.FLOODED_LOG else ""
        self._phases = case.symptom.phases

    @property
    def ends_the_engine(self) -> bool:
        return self.acts_as in (Impostor.ENGINE_STOPPED, Impostor.ENGINE_KILLED)

    def at_start(self) -> None:
        """Raise the impostor's failure where the case's failure belongs to the start of an engine.

        It is forged, since a real start takes long.
        """
        if _BEFORE_REQUESTS.issuperset(self._phases):
            self.forge(self._phases[0])

    def forge(self, phase: str) -> None:
        """Raise the impostor's failure without a request to the target."""
        self.injected = True
        self.replaced.append(f"phase {phase}")
        logged = {Part.LOG: Masked(self._flood)} if self._flood else {}
        kind, message = "ValueError", UNRELATED_MESSAGE
        match self.acts_as:
            case Impostor.WRONG_ARGUMENT:
                kind, message = "TypeError", f"unexpected keyword argument '{_NOBODY}'"
            case Impostor.EMPTY_ANSWER:
                words = "the engine sent an empty reply"
                raise ProtocolError(words, phase=phase, parts=logged)
            case Impostor.ENGINE_STOPPED:
                raise DeadlineExceeded("the engine is stopped", phase=phase, parts=logged)
            case Impostor.ENGINE_KILLED:
                raise ChildDied("the engine was killed (SIGKILL)", phase=phase, parts=logged)
        text = Masked(f"{kind}: {message}")
        parts = {Part.EXCEPTION: text, **logged}
        raise RemoteError(text, phase=phase, type_name=f"builtins.{kind}", parts=parts)

    def interceptor(
        self, engine: Engine | AsyncEngine | Server | None = None
    ) -> Interceptor | None:
        """Return the interceptor for the loan of an engine, or of a probe process (None).

        A server's requests go past its loan: ``between``.
        """
        if isinstance(engine, Server):
            return None
        streamed = isinstance(engine, AsyncEngine)  # its answer is a list of pieces

        def ask(child: Child, operation: str, deadline: Deadline, arguments: dict[str, Any]) -> Any:
            if operation not in _ASKED_BY_TESTS:
                return child.ask(operation, deadline, **arguments)
            self._begin(child, operation)
            match self.acts_as:
                case Impostor.WRONG_ARGUMENT:
                    return child.ask(operation, deadline, **_with_nobodys(operation, arguments))
                case Impostor.EMPTY_ANSWER:
                    child.replied(deadline.phase)
                    return _empty(operation, arguments, streamed)
                case Impostor.ENGINE_STOPPED | Impostor.ENGINE_KILLED:
                    return child.ask(
                        operation,
                        Deadline.after(deadline.phase, SHORT_S, deadline.clock),
                        **arguments,
                    )
            raise child.failures.error(
                f"{child.name} raised ValueError: {UNRELATED_MESSAGE}",
                phase=deadline.phase,
                type_name="builtins.ValueError",
                exception=Masked(f"ValueError: {UNRELATED_MESSAGE}"),
            )

        return ask

    def between(
        self, engine: Engine | AsyncEngine | Server
    ) -> contextlib.AbstractContextManager[None]:
        """Send the HTTP requests of the block through the injected fault, where ``engine`` is a
        server."""
        if isinstance(engine, Server):
            return engine.route_through(_Transport(self, engine))
        return contextlib.nullcontext()

    def _begin(self, child: Child, call: str) -> None:
        self.replaced.append(call)
        first, self.injected = not self.injected, True
        if first and self._flood:
            with child.log.open("a", encoding="utf-8") as log:
                log.write(f"\n{self._flood}\n")
        if first and self.ends_the_engine:
            number = signal.SIGSTOP if self.acts_as is Impostor.ENGINE_STOPPED else signal.SIGKILL
            process_tree.send_signal(child.processes(), number)


class _Transport(httpx.BaseTransport):
    def __init__(self, fault: FaultInjection, server: Server) -> None:
        self._fault, self._server = fault, server
        self._real = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path in LEFT_ALONE:
            return self._real.handle_request(request)
        self._fault._begin(self._server.child, f"{request.method} {request.url.path}")
        match self._fault.acts_as:
            case Impostor.UNRELATED_EXCEPTION:
                raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
            case Impostor.WRONG_ARGUMENT:
                body = {**json.loads(request.read() or b"{}"), **_WRONG}
                request.headers.pop("content-length", None)
                wrong = httpx.Request(
                    request.method,
                    request.url,
                    headers=request.headers,
                    json=body,
                    extensions=request.extensions,
                )
                # What ends an address that ignores the argument is the real failure.
                self._fault.injected = False
                response = self._real.handle_request(wrong)
                self._fault.injected = True
                self._fault.replaced[-1] += f" with {', '.join(_WRONG)} = {_WRONG_VALUE!r}"
                if _is_rejection(response):
                    return response
                response.close()
                self._fault.ignored.append(f"{request.method} {request.url.path}")
                return _error(400, f"unexpected argument '{_NOBODY}'")
            case Impostor.EMPTY_ANSWER:
                if json.loads(request.read() or b"{}").get("stream"):
                    return httpx.Response(200, text="data: [DONE]\n\n")
                return httpx.Response(200, json=_EMPTY)
            case Impostor.ERROR_STATUS:
                return _error(500, "an unrelated fault")
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), SHORT_S)
        return self._real.handle_request(request)

    def close(self) -> None:
        self._real.close()


def _is_rejection(response: httpx.Response) -> bool:
    """Return whether an address refused a wrong argument, which it names then."""
    return response.is_error and repr(_WRONG_VALUE) in response.read().decode(errors="replace")


def _error(status: int, message: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "code": status}})


def _with_nobodys(operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if operation == "call":
        return {**arguments, "arguments": {**arguments["arguments"], _NOBODY: 1}}
    sampling = arguments["sampling"]
    if isinstance(sampling, list):
        return {**arguments, "sampling": [{**each, _NOBODY: 1} for each in sampling]}
    return {**arguments, "sampling": {**sampling, _NOBODY: 1}}


def _empty(operation: str, arguments: dict[str, Any], streamed: bool) -> Any:
    if operation == "call":
        return None
    nothing: dict[str, Any] = {
        "request_id": "",
        "finished": True,
        "prompt_token_ids": [],
        "prompt_logprobs": None,
        "cached_tokens": None,
        "outputs": [],
    }
    return [[nothing] if streamed else nothing for _ in arguments.get("prompts", [None])]
