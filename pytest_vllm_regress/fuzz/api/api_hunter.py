"""The hunter of ``vllm-regress fuzz api``: requests from a server's own description, with values
that it is not prepared for, and the memory that equal requests take.

A part is one operation of one server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from ...engines.session import Session
from ...errors import ChildError, NotAtWork, Unsupported, UsageError
from ...surveys.states.growth import LEAST, Growth
from ...util.codec import Meta
from ...util.text import render_text
from ..finding import Finding, Problem, ReplayAnswer
from ..hunter import CampaignPlan, Hunter, Reply, versions_with_vllm
from ..reduce import Effort, smaller_values
from .api_oracle import ApiOutcome, is_explained, narrowed, odd_fields, problem
from .api_request import ApiReply, ApiRequest
from .request_drawing import Operation, RequestDrawer, operations, routes_of
from .servers import LIMITS, SERVERS, STATEFUL, ApiLane, ServerStarter

REQUESTS = 2000
"""Number of equal requests of a measurement, unless a campaign says another."""
_DEADLY = (
    ApiOutcome.ENGINE_DEAD,
    ApiOutcome.ENGINE_STUCK,
    ApiOutcome.OUT_OF_MEMORY,
    ApiOutcome.NO_ANSWER,
)


class ApiFinding(Finding, frozen=True, tag="api"):
    """A server's failure.

    Attributes:
        server_options: command line of the server, for people.
        curl: the request as a command, for people.
    """

    allowed = tuple(ApiOutcome)
    question: ApiRequest
    server_options: Annotated[str, Meta(max_length=1000)] = ""
    curl: Annotated[str, Meta(max_length=8000)] = ""

    @property
    def subject(self) -> str:
        return f"api-{re.sub(r'[^a-z0-9]+', '-', self.question.route.lower()).strip('-')}"

    @property
    def identity(self) -> object:
        return [self.problem.kind, self.problem.key]

    @staticmethod
    def traits(question: ApiRequest) -> frozenset[str]:
        return frozenset(odd_fields(question))

    def explains(self, question: ApiRequest, problem: Problem) -> bool:
        return is_explained(self.problem, question, problem)

    def bug_form(self) -> str:
        """Return title and sections of vLLM's bug-report form, filled."""
        versions = "\n".join(f"{name} {version}" for name, version in self.versions.items())
        return render_text("bug_form.md.txt", finding=self, versions=versions)


@dataclass(frozen=True)
class ServedOperation:
    """An operation of a kind of server, or how the memory grows with its requests."""

    server: str
    operation: Operation
    grows: bool = False

    def __str__(self) -> str:
        return f"{self.server}: {self.operation.label}{': memory' if self.grows else ''}"


class ApiHunter(Hunter[ApiLane, ServedOperation, ApiRequest, ApiFinding]):
    """Asks servers.

    Args:
        servers: kinds of servers; empty for all.
        routes: routes; empty for all.
        growth: equal requests of each measurement of memory; 0 for none.
    """

    kind = ApiFinding
    batch = 8  # after so many questions the engine is asked for a token
    most_fruitless = 3
    limits = LIMITS

    def __init__(
        self,
        lanes: Sequence[ApiLane],
        environment: str,
        versions: Mapping[str, str],
        *,
        servers: Sequence[str] = (),
        routes: Sequence[str] = (),
        growth: int = 0,
    ) -> None:
        if unknown := sorted({*servers} - {*SERVERS}):
            raise UsageError(f"--server {unknown[0]!r}: allowed are {', '.join(SERVERS)}")
        options = {"servers": sorted(servers), "routes": sorted(routes), "growth": growth}
        super().__init__(lanes, environment, versions, options)
        self._servers, self._routes, self._growth = servers or tuple(SERVERS), routes, growth
        self._drawers: dict[str, RequestDrawer] = {}

    @classmethod
    def of(
        cls,
        sessions: Sequence[Session],
        environment: str,
        *,
        seconds: float | None = None,
        jobs: int = 1,
        **options: Any,
    ) -> Self:
        """As for all hunters, but the lanes share a session. ``jobs``: number of servers of one
        kind that are asked at the same time."""
        starter = ServerStarter(sessions[0], environment)
        lanes = [ApiLane(starter, seconds or 20.0) for _ in range(jobs)]
        return cls(lanes, environment, versions_with_vllm(sessions[0], environment), **options)

    def parts(self, plan: CampaignPlan, number: int) -> Iterator[ServedOperation]:
        for server in self._servers:
            for operation in self._operations(server):
                yield ServedOperation(server, operation)
                if self._growth:
                    yield ServedOperation(server, operation, grows=True)

    def _operations(self, server: str) -> list[Operation]:
        """Return the operations of a server that are chosen, from its own description."""
        if server not in self._drawers and server not in self.left_out:
            try:
                document = self.lanes.first.description(server)
                self._drawers[server] = RequestDrawer(server, document)
            except (Unsupported, ChildError) as error:
                self.left_out[server] = str(error.args[0])
        if server in self.left_out:
            return []
        own = routes_of(server)
        return [
            operation
            for operation in operations(self._drawers[server].document)
            if (own is None or operation.route in own)
            and (not self._routes or operation.route in self._routes)
        ]

    def draw(self, part: ServedOperation, plan: CampaignPlan, number: int) -> list[ApiRequest]:
        drawer = self._drawers[part.server]
        questions = drawer.questions(part.operation, plan.seed, number, plan.examples)
        return list(self._shortest(questions)) if part.grows else questions

    def _shortest(self, questions: Sequence[ApiRequest]) -> Iterator[ApiRequest]:
        """Yield the accepted and the refused request of an operation with the shortest answers.

        Requests that change a state are left out.
        """
        replies: list[ApiReply] = []
        for start in range(0, len(questions), self.batch):
            batch = questions[start : start + self.batch]
            replies += self.lanes.run(lambda lane, batch=batch: lane.ask(batch))  # type: ignore[misc]
        for hundred in (2, 4):
            answered = [
                (len(reply.text), number)
                for number, reply in enumerate(replies)
                if (reply.status or 0) // 100 == hundred and not reply.failure
            ]
            if answered and not any(word in questions[0].route for word in STATEFUL):
                yield questions[min(answered)[1]]

    def ask(
        self, lane: ApiLane, part: ServedOperation, questions: Sequence[ApiRequest]
    ) -> list[Reply[ApiRequest]]:
        if part.grows:
            return [Reply.of(question, self._growth_of(lane, question)) for question in questions]
        judged = []
        for question, reply in zip(questions, lane.ask(questions), strict=True):
            found = problem(question, reply)
            status = f"{reply.status // 100}xx" if reply.status else "none"
            judged.append(Reply([(question, found)] if found else [], [status]))
        return judged

    def _growth_of(self, lane: ApiLane, question: ApiRequest) -> Iterator[Problem]:
        """Yield that memory grows with a request, if two measurements in a row show it.

        The first one may show a cache that fills.
        """
        requests = self._growth or REQUESTS
        try:
            first = _growing(lane.growth(question, requests))
            second = _growing(lane.growth(question, requests)) if first else {}
        except NotAtWork:  # the server ended, which the questions of the operation report
            return
        for process in [name for name in first if name in second][:1]:
            words = f"{process}: {first[process].uss}, and again {second[process].uss}"
            key = f"{process} grows at {question.operation}"
            yield Problem(ApiOutcome.MEMORY_GROWS, words, key)

    def simplify(
        self, part: ServedOperation, question: ApiRequest, problem: Problem
    ) -> Iterator[ApiRequest]:
        if question.body is None:
            return
        try:
            body = question.value()
        except ValueError:
            half = len(question.body) // 2
            texts = question.body[:half], question.body[half:], question.body[:-1]
            yield from map(question.with_body, filter(None, texts))
            return
        model = body.get("model") if isinstance(body, dict) else None
        for value in smaller_values(body):
            if not isinstance(body, dict) or value.get("model") == model:
                yield question.with_body(json.dumps(value))

    def effort(self, problem: Problem) -> Effort:
        if problem.kind == ApiOutcome.MEMORY_GROWS:
            return Effort(0)
        if problem.kind in _DEADLY:  # it takes seconds to start a server again
            return Effort(24, confirmed=True)
        return Effort(120, batch=8, confirmed=True)

    def details(
        self, part: ServedOperation, question: ApiRequest, problem: Problem
    ) -> dict[str, object]:
        return {
            "problem": narrowed(question, problem),
            "releases": {self.version: ReplayAnswer.STILL_FAILS},  # it was asked again
            "server_options": SERVERS[question.server].options(),
            "curl": question.curl()[:8000],
        }

    def describe(self, finding: ApiFinding) -> Iterator[str]:
        yield finding.curl[:300]

    def part_of(self, finding: ApiFinding) -> ServedOperation:
        question = finding.question
        grows = finding.problem.kind == ApiOutcome.MEMORY_GROWS
        return ServedOperation(question.server, Operation(question.method, question.route), grows)

    def compare(self, finding: ApiFinding, seen: Sequence[Problem]) -> tuple[ReplayAnswer, str]:
        return super().compare(finding, [narrowed(finding.question, one) for one in seen])


def _growing(growths: Mapping[str, Growth]) -> dict[str, Growth]:
    return {name: growth for name, growth in growths.items() if growth.uss.low >= LEAST}


HUNTER = ApiHunter
