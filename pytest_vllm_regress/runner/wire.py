"""Requests and replies for batches that run elsewhere: one line of text each, which a file, a pipe
or Ray can carry. A request has the files that its batch needs from the machine that makes it.

Both are JSON (``BatchRequest``, ``BatchReply``). Who only forwards a reply reads its ``head_of``.
"""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from .._version import __version__
from ..cases import results
from ..cases.loading import load_all_cases
from ..cases.proofs import proof, rejudge
from ..cases.results import RunResult
from ..defaults import ASKED_DEVICES
from ..engines.gpus import nvml
from ..environments.install import SIDECARS, sidecar_locks
from ..environments.names import resolve
from ..environments.recipes import FILE, LOCKS, MAX_BYTES, find_file
from ..environments.sources import names_interpreter
from ..errors import UsageError
from ..util import codec
from ..util.codec import Document, Meta, built
from ..util.documents import parse_json
from ..util.files import files_below, peek, read_bounded
from .batch import Batch, BatchState, Needs, RunOptions
from .pytest_run import OUTER_TIMEOUT_S

SCHEMA_VERSION = 3
MAX_LOG = 256 * 1024
"""Characters of pytest's output that a reply carries: the end of it."""
CASES = "cases"
MAX_FILE = 4 * 1024 * 1024
_NOT_SENT = {"README.md", proof.FILE, rejudge.OBSERVATIONS_FILE}
"""Files of a case that its tests do not read."""
_ALLOWED_DEVICES = {"x-allowed": f"{', '.join(ASKED_DEVICES)}, or an empty string"}
_Line = Annotated[str, Meta(max_length=1000)]
_Path = Annotated[
    str,
    Meta(
        pattern=r"^(?!/)(?!(.*/)?\.{1,2}(/|$))[^\x00]{1,1000}$",
        extra_json_schema={"x-allowed": "a path that stays below its folder"},
    ),
]
_Files = Annotated[
    dict[_Path, Annotated[str, Meta(max_length=16 * 1024 * 1024)]], Meta(max_length=100_000)
]
"""Texts by path."""
D = TypeVar("D", bound=Document)


class BatchRequest(Document, frozen=True):
    """A batch with everything that another machine needs to run it.

    ``recipes`` is the environments.toml in which ``environment`` is a name, ``locks`` its lock
    files by name; both are empty for an interpreter's path. ``files``: the cases' files by path
    below the directory of cases. Without ``cases`` the environment is built and nothing is run.
    ``deadline_s`` is for each case, and for the build.
    """

    environment: Annotated[str, Meta(min_length=1, max_length=4000)]
    recipes: Annotated[str, Meta(max_length=1024 * 1024)] = ""
    locks: _Files = msgspec.field(default_factory=dict)
    cases: Annotated[tuple[_Line, ...], Meta(max_length=10_000)] = ()
    files: _Files = msgspec.field(default_factory=dict)
    device: Annotated[
        str, Meta(pattern=f"^({'|'.join(ASKED_DEVICES)}|)$", extra_json_schema=_ALLOWED_DEVICES)
    ] = ""
    pytest_args: Annotated[
        tuple[Annotated[str, Meta(max_length=100_000)], ...], Meta(max_length=1000)
    ] = ()
    needs: Needs = Needs()
    deadline_s: Annotated[float, Meta(gt=0)] = 3600.0

    def only(self, case_ids: tuple[str, ...]) -> BatchRequest:
        """The request for these of its cases, with the files that they need."""
        omitted = set(self.cases) - set(case_ids)
        files = {
            path: text for path, text in self.files.items() if path.partition("/")[0] not in omitted
        }
        return msgspec.structs.replace(self, cases=case_ids, files=files)

    def without_cases(self) -> BatchRequest:
        """The request to build the environment and run nothing."""
        return msgspec.structs.replace(self, cases=(), files={}, pytest_args=())


class BatchReply(Document, frozen=True):
    """Results of a request, or of the first of its cases (``last`` is False).

    ``why``: the reason if it is unbuilt or lost. ``log``: the end of pytest's output.
    """

    state: BatchState = BatchState.FINISHED
    run: RunResult = msgspec.field(default_factory=RunResult)
    last: bool = True
    why: Annotated[str, Meta(max_length=200_000)] = ""
    node: Annotated[Mapping[str, _Line], Meta(max_length=20)] = msgspec.field(default_factory=dict)
    log: Annotated[str, Meta(max_length=1024 * 1024)] = ""

    @classmethod
    def started(cls, node: str) -> BatchReply:
        """The reply that a node has taken up the request."""
        return cls(BatchState.STARTED, last=False, node={"node": node})

    @classmethod
    def killed(cls, node: str) -> BatchReply:
        """The reply for a worker or guard that ended without one."""
        why = "the process that ran the batch ended without a reply: something has killed it"
        return cls(BatchState.LOST, why=why, node={"node": node})


def needs_of(options: RunOptions, gpus: int | None = None) -> Needs:
    """Return what each batch needs. ``gpus``: how many on device gpu (default 1)."""
    return Needs(gpus=(gpus or 1) if options.asks_for_gpu else 0)


def pack(batch: Batch, options: RunOptions, needs: Needs) -> BatchRequest:
    """What is sent to a Ray node? Return the request for a batch: cases, locks and options as JSON;
    the node builds the environment.

    Raises ``UsageError`` for an environment of source code, which needs a clone, and for a case
    with files that are not text.
    """
    recipes, locks = "", {}
    if not names_interpreter(batch.environment):
        recipe = resolve(batch.environment)
        if recipe.overlay is not None or recipe.build is not None:
            raise UsageError(
                f"{batch.environment}: source code over a release needs a clone, which other machines do not have: run it here, without --on"
            )
        recipes = _text(find_file(), MAX_BYTES)
        locks = {
            lock.name: _text(lock, MAX_FILE)
            for lock in (recipe.lock, recipe.lock_local)
            if lock is not None
        }
        locks |= {f"{SIDECARS}/{lock.name}": _text(lock, MAX_FILE) for lock in sidecar_locks()}
    return BatchRequest(
        environment=batch.environment,
        recipes=recipes,
        locks=locks,
        cases=tuple(case.id for case in batch.cases),
        files=dict(_files_of(batch)),
        device=options.device or "",
        pytest_args=options.pytest_args,
        needs=needs,
        deadline_s=2.0 * OUTER_TIMEOUT_S,
    )


def unpack(request: BatchRequest, folder: Path) -> tuple[Batch, RunOptions]:
    """Write the request's files below ``folder`` and return its batch and options.

    With ``folder`` as working directory the environment's name means what it means where the
    request was made.
    """
    files = {f"{CASES}/{name}": text for name, text in request.files.items()}
    files |= {f"{LOCKS}/{name}": text for name, text in request.locks.items()}
    files |= {FILE: request.recipes} if request.recipes else {}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    cases = {case.id: case for case in load_all_cases(folder / CASES)} if request.cases else {}
    if unknown := [case_id for case_id in request.cases if case_id not in cases]:
        raise UsageError(f"the request has no files of {', '.join(unknown)}")
    options = RunOptions(request.device or None, None, request.pytest_args)
    return Batch(
        request.environment, tuple(cases[case_id] for case_id in request.cases), {}
    ), options


def _files_of(batch: Batch) -> Iterator[tuple[str, str]]:
    for root in {case.directory.parent: None for case in batch.cases}:
        yield from ((path.name, _text(path, MAX_FILE)) for path in sorted(root.glob("*.py")))
    for case in batch.cases:
        for path in files_below(case.directory):
            if path.is_file() and path.name not in _NOT_SENT and "__pycache__" not in path.parts:
                yield path.relative_to(case.directory.parent).as_posix(), _text(path, MAX_FILE)


def _text(path: Path, limit: int) -> str:
    try:
        return read_bounded(path, limit, what="a file that is sent to another machine").decode(
            "utf-8"
        )
    except UnicodeDecodeError:
        raise UsageError(
            f"{path}: not UTF-8, so it cannot be sent to another machine: run the case here"
        ) from None


def encode_request(request: BatchRequest) -> str:
    """Return the request as one line of JSON."""
    return _line(request)


def decode_request(text: str | bytes) -> BatchRequest:
    """Return the request that ``encode_request`` wrote.

    Raises ``UsageError`` for anything else, and for another version's.
    """
    return _document(text, "a request for a batch", BatchRequest)


def encode_reply(reply: BatchReply) -> str:
    """Return the reply as one line of JSON."""
    why, log = reply.why[: results.MAX_DOSSIER], reply.log[-MAX_LOG:]
    return _line(codec.replace(reply, why=why, log=log))


def decode_reply(text: str) -> BatchReply:
    """Return the reply that ``encode_reply`` wrote, with secrets masked.

    Raises ``UsageError`` for anything else.
    """
    return _document(text, "the reply of a batch", BatchReply, mask=True)


class ReplyHead(msgspec.Struct):
    """What those who forward a reply need to know of it. Reading only that is fast."""

    state: BatchState = BatchState.FINISHED
    last: bool = True


def head_of(reply: str | bytes) -> ReplyHead:
    """Return the head of an encoded reply."""
    return msgspec.json.decode(reply, type=built(ReplyHead))


def machine_facts(node: str = "") -> dict[str, str]:
    """Return facts of this machine. ``node``: its name (default: the host name)."""
    gpus = nvml.query_machine()
    driver = {} if isinstance(gpus, str) else {"driver": str(gpus.driver)}
    return {
        "node": node or socket.gethostname(),
        "machine": platform.machine(),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **driver,
    }


def _processor() -> str:
    lines = peek(Path("/proc/cpuinfo"), 64 * 1024).splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def _line(document: Document) -> str:
    head = {"schema": SCHEMA_VERSION, "tool_version": __version__}
    return json.dumps({**head, **codec.encode(document)})


def _document(text: str | bytes, what: str, kind: type[D], *, mask: bool = False) -> D:
    try:
        plain = parse_json(text)
    except ValueError as wrong:
        raise UsageError(f"{what}: not valid JSON: {wrong}") from None
    version, tool = (
        (plain.pop("schema", None), plain.pop("tool_version", None))
        if isinstance(plain, dict)
        else (None, None)
    )
    if version != SCHEMA_VERSION:
        raise UsageError(f"{what}: schema = {version!r}: this vllm-regress reads {SCHEMA_VERSION}")
    if tool != __version__:
        raise UsageError(
            f"{what} is of vllm-regress {tool}, and here is {__version__}: "
            "install the same one on every machine"
        )
    return codec.decode(kind, results.hide_secrets(plain) if mask else plain, what)
