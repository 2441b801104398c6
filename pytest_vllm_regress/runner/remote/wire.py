"""Requests and replies for batches that run elsewhere: one line of text each, which a file, a pipe
or Ray can carry.

A request is JSON (``batch_request_schema.json``). A reply is its state, "more" or "last", and JSON
(``batch_reply_schema.json``), so that whoever
passes it on need not decode it: ``is_last`` and ``state_of`` look at its beginning.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from ..._version import __version__
from ...cases import results
from ...cases.results import RunResult
from ...errors import UsageError
from ...util.documents import parse_json
from ...util.validation import problems
from ..batch import BatchState, Needs

SCHEMA_VERSION = 2
MAX_LOG = 256 * 1024
"""Characters of pytest's output that a reply carries: the end of it."""


@dataclasses.dataclass(frozen=True)
class BatchRequest:
    """A batch with everything that another machine needs to run it.

    ``recipes`` is the environments.toml in which ``environment`` is a name, ``locks`` its lock
    files by name; both are empty for an interpreter's
    path. ``files``: the cases' files by path below the directory of cases. ``deadline_s`` is for
    each case, and for the build.
    """

    environment: str
    recipes: str = ""
    locks: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    cases: tuple[str, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    device: str = ""
    pytest_args: tuple[str, ...] = ()
    needs: Needs = dataclasses.field(default_factory=Needs)
    deadline_s: float = 3600.0
    tool_version: str = __version__

    def only(self, case_ids: tuple[str, ...]) -> BatchRequest:
        """The request for these of its cases, with the files that they need."""
        omitted = set(self.cases) - set(case_ids)
        files = {
            path: text for path, text in self.files.items() if path.partition("/")[0] not in omitted
        }
        return dataclasses.replace(self, cases=case_ids, files=files)

    def without_cases(self) -> BatchRequest:
        """The request to build the environment and run nothing."""
        return dataclasses.replace(self, cases=(), files={}, pytest_args=())


@dataclasses.dataclass(frozen=True)
class BatchReply:
    """Results of a request, or of the first of its cases (``last`` is False).

    ``why``: the reason if it is unbuilt or lost. ``log``: the end of pytest's output.
    """

    state: BatchState = BatchState.FINISHED
    run: RunResult = dataclasses.field(default_factory=RunResult)
    last: bool = True
    why: str = ""
    node: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    log: str = ""

    @classmethod
    def started(cls, node: str) -> BatchReply:
        """The reply that a node has taken up the request."""
        return cls(BatchState.STARTED, last=False, node={"node": node})

    @classmethod
    def killed(cls, node: str) -> BatchReply:
        """The reply for a worker or guard that ended without one."""
        why = "the process that ran the batch ended without a reply: something has killed it"
        return cls(BatchState.LOST, why=why, node={"node": node})


def encode_request(request: BatchRequest) -> str:
    """Return the request as one line of JSON."""
    return json.dumps({"schema": SCHEMA_VERSION, **dataclasses.asdict(request)})


def decode_request(text: str | bytes) -> BatchRequest:
    """Return the request that ``encode_request`` wrote.

    Raises ``UsageError`` for anything else, and for another version's.
    """
    plain = _document(text, "a request for a batch", "batch_request_schema.json")
    if plain["tool_version"] != __version__:
        raise UsageError(
            f"the request is of vllm-regress {plain['tool_version']}, and here is {__version__}: install the same one on every machine"
        )
    values = {name: tuple(plain[name]) for name in ("cases", "pytest_args")}
    return BatchRequest(**plain | values | {"needs": Needs(**plain["needs"])})


def encode_reply(reply: BatchReply) -> str:
    """Return the reply as one line."""
    plain = {
        "schema": SCHEMA_VERSION,
        "run": reply.run.to_json(),
        "why": reply.why[: results.MAX_DOSSIER],
        "node": dict(reply.node),
        "log": reply.log[-MAX_LOG:],
    }
    return f"{reply.state.value} {'last' if reply.last else 'more'} {json.dumps(plain)}"


def decode_reply(text: str) -> BatchReply:
    """Return the reply that ``encode_reply`` wrote, with secrets masked.

    Raises ``UsageError`` for anything else.
    """
    state, document = state_of(text), text.partition(" ")[2].partition(" ")[2]
    plain = _document(document, "the reply of a batch", "batch_reply_schema.json")
    run = results.run_from_document(plain["run"], "the reply of a batch")
    masked = results.hide_secrets({name: plain[name] for name in ("why", "node", "log")})
    return BatchReply(state, run, is_last(text), masked["why"], masked["node"], masked["log"])


def state_of(reply: str) -> BatchState:
    """Return the state of an encoded reply."""
    try:
        return BatchState(reply.partition(" ")[0])
    except ValueError:
        raise UsageError("the reply of a batch: it does not begin with its state") from None


def is_last(reply: str) -> bool:
    """Return whether an encoded reply is the last one to its request."""
    return reply.partition(" ")[2].startswith("last ")


def _document(text: str | bytes, what: str, schema: str) -> dict[str, Any]:
    try:
        document = parse_json(text)
    except ValueError as wrong:
        raise UsageError(f"{what}: not valid JSON: {wrong}") from None
    version = document.get("schema") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise UsageError(f"{what}: schema = {version!r}: this vllm-regress reads {SCHEMA_VERSION}")
    if faults := problems(document, schema):
        raise UsageError("\n".join(f"{what}: {line}" for line in faults))
    return {name: value for name, value in document.items() if name != "schema"}
