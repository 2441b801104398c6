"""What V1 still holds of requests: read from vLLM's own objects, in the process that has them.

No container is named here, because each release has others: every container of the scheduler, of
what it manages, of the engine core, and of the front process's output processor and client is
searched for the ids of requests that the core was given.
"""

import collections
import functools
import json
import os
import queue
import socket
import sys
import threading
from contextlib import suppress
from typing import Any, Callable, Iterator

FOLDER = "VLLM_REGRESS_HELD"
"""Variable: the folder with a socket for each process that can be asked."""
_SEEN_AT_MOST = 20000
_DEPTH = 3
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque, queue.Queue)
_OWNERS = ("vllm.v1.core", "vllm.v1.engine", "vllm.v1.metrics", "vllm.v1.structured_output")
"""Modules whose classes may hold requests, with their subpackages."""
_STATISTICS = "vllm.v1.metrics"
_GAUGES = ("num_running", "num_waiting")
"""How the scheduler names its counts of requests that are in some state now."""
_OF_THE_LAST_STEP = frozenset({"prev_step_scheduled_req_ids"})
"""Attributes that say what the last step did; they are replaced by the next one."""
_NOT_SEARCHED = ("free_block_queue", "block_id", "request_id", "scheduler")
"""Attributes of the pool of blocks and of blocks, which are many and know no requests, of requests,
and of an engine core in the front process, which answers for itself."""
_NUMBERS = {
    "free blocks": (("kv_cache_manager", "block_pool"), ("get_num_free_blocks",)),
    "free encoder cache": (("encoder_cache_manager",), ("num_freeable_slots", "num_free_slots")),
}
"""Numbers that are the same whenever no request is held: path from the scheduler, and the names of
the attribute, the first that there is. Cached blocks that nobody refers to count as free."""

Held = dict[str, list[str]]


def watch() -> None:
    """Let the engines of this process, and of those forked from it, say what they hold, if asked."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    for module, name, make in (
        ("vllm.v1.engine.core", "EngineCore", Core),
        ("vllm.v1.engine.async_llm", "AsyncLLM", Front),
        ("vllm.v1.engine.llm_engine", "LLMEngine", Front),
    ):
        engine_class = getattr(sys.modules.get(module), name, None)
        if engine_class is not None:
            _after_init(engine_class, functools.partial(_answer, folder, make))


def _after_init(engine_class: Any, call: Callable[[Any], None]) -> None:
    original = engine_class.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with suppress(Exception):
            call(self)

    engine_class.__init__ = init


def _answer(folder: str, make: Any, engine: Any) -> None:
    """Send to each connection what the engine holds, from a thread of its own."""
    reader = make(engine)
    listener = socket.socket(socket.AF_UNIX)
    at = os.open(folder, os.O_PATH)  # the path itself may be too long for a socket
    listener.bind("/proc/self/fd/{}/{}-{}".format(at, os.getpid(), reader.part))
    os.close(at)
    listener.listen()

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(json.dumps(_undisturbed(reader.read)).encode())

    threading.Thread(target=serve, name="vllm-regress-held", daemon=True).start()


def _undisturbed(read: Callable[[], Any]) -> Any:
    """Return what ``read`` returns when no container changes while it is read; else nothing."""
    for _ in range(20):
        with suppress(RuntimeError):  # changed size during iteration
            return read()
    return None


class Front:
    """The requests that the front process works on: ``AsyncLLM`` or ``LLMEngine``."""

    part = "front"
    _NAMES = ("request_states", "parent_requests", "external_req_ids")

    def __init__(self, engine: Any) -> None:
        self._processor = engine.output_processor
        self._client = getattr(engine, "engine_core", None)
        self._sent: dict[str, None] = {}
        self._ended: set[str] = set()
        for name in ("add_request", "add_request_async"):
            _before(self._client, name, self._note_sent)
        _before(self._processor, "process_outputs", self._note_ended)
        self._start = self._numbers()

    def _note_sent(self, request: Any) -> None:
        self._ended.discard(request.request_id)
        _remember(self._sent, request.request_id)
        if len(self._ended) > _SEEN_AT_MOST:
            self._ended.intersection_update(self._sent)

    def _note_ended(self, outputs: Any) -> None:
        """Remember which requests the core has ended, of those that are not given up."""
        streams = self._processor.request_states
        for output in outputs:
            if getattr(output, "finish_reason", None) is not None and output.request_id in streams:
                self._ended.add(output.request_id)

    def read(self) -> dict[str, Any]:
        """Return the ids in each container, requests ``given_up`` before the core had ended them,
        and the names of what this release lacks."""
        there = [name for name in self._NAMES if hasattr(self._processor, name)]
        held = {f"output_processor.{name}": list(getattr(self._processor, name)) for name in there}
        streams = getattr(self._processor, there[0], {})
        for title, owner in (("output_processor", self._processor), ("client", self._client)):
            others: Held = {}
            _Search(self._sent, others).search(owner, title)
            held = {**others, **held}
        return {
            "held": {name: ids for name, ids in held.items() if ids},
            "live": list(streams),
            "given_up": [
                request
                for request in self._sent
                if request not in self._ended and request not in streams
            ],
            "numbers": _changed(self._numbers(), self._start),
            "missing": [name for name in self._NAMES if name not in there],
        }

    def _numbers(self) -> dict[str, float]:
        """Return how many answers of calls to the core are kept, by container, and how many
        requests count as admitted."""
        numbers: dict[str, float] = {
            f"client.{name}": sum(map(_is_done, value.values()))
            for name, value in list(getattr(self._client, "__dict__", {}).items())
            if isinstance(value, dict)
        }
        admission: Any = getattr(self._processor, "admission_stats", None)
        if admission is not None:
            numbers["admitted requests"] = admission.get_num_requests()
        return numbers


class Core:
    """What the engine core holds of the requests that it was given."""

    part = "core"

    def __init__(self, core: Any) -> None:
        self._core = core
        self._seen: dict[str, None] = {}
        self._aborted: dict[str, None] = {}
        self._start = self._numbers()
        _before(core, "add_request", self._note_added)
        _before(core, "abort_requests", self._note_aborted)

    def _note_added(self, request: Any) -> None:
        self._aborted.pop(request.request_id, None)
        _remember(self._seen, request.request_id)

    def _note_aborted(self, request_ids: Any) -> None:
        for request_id in request_ids:
            _remember(self._aborted, request_id)

    def read(self) -> dict[str, Any]:
        """Return the ids in each container, those that were ``aborted``, numbers that differ from
        those at the start as ``[now, start]``, and the names of those that this release lacks.

        A connector may keep the blocks of a request that has ended: then nothing is known.
        """
        answer = {"held": {}, "aborted": list(self._aborted), "numbers": {}, "missing": []}
        if getattr(self._core.scheduler, "connector", None) is not None:
            return {**answer, "missing": ["anything beside a KV connector"]}
        held: Held = {}
        _Search(self._seen, held).search(self._core, "core")
        now = self._numbers()
        return {
            **answer,
            "held": held,
            "numbers": _changed(now, self._start),
            "missing": [name for name in _NUMBERS if name not in now],
        }

    def _numbers(self) -> dict[str, float]:
        scheduler = self._core.scheduler
        numbers = dict(_gauges(scheduler, "scheduler"))
        for title, (path, names) in _NUMBERS.items():
            owner = scheduler
            for step in path:
                owner = getattr(owner, step, None)
                numbers.update(_statistics(owner, step))
            name = next((name for name in names if hasattr(owner, name)), None)
            if name is not None:
                value = getattr(owner, name)
                numbers[title] = value() if callable(value) else value
        return numbers


class _Search:
    """Searches all containers of an object and its parts for the ``ids`` of requests.

    ``held`` gets those that each container holds."""

    def __init__(self, ids: Any, held: Held) -> None:
        self._known, self._held = ids, held
        self._visited: set[int] = set()

    def search(self, owner: Any, path: str) -> None:
        """Search an object. The containers of ``core`` itself are named without it."""
        self._visited.add(id(owner))
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if name in _OF_THE_LAST_STEP:
                continue
            where = name if path == "core" else f"{path}.{name}"
            if isinstance(value, _CONTAINERS):
                ids = set(self._ids(value, _DEPTH))
                if ids:
                    self._held[where] = sorted(ids.union(self._held.get(where, ())))
            for part in _parts(value):
                if id(part) not in self._visited and _may_hold(part):
                    self.search(part, where)

    def _ids(self, value: Any, depth: int) -> Iterator[str]:
        """Yield the ids of requests in a container, and in those in it."""
        request_id = value if isinstance(value, str) else getattr(value, "request_id", None)
        if isinstance(request_id, str):
            if request_id in self._known:
                yield request_id
        elif depth and isinstance(value, _CONTAINERS):
            parts = value.queue if isinstance(value, queue.Queue) else value
            for part in parts:
                yield from self._ids(part, depth - 1)
            if isinstance(value, dict):
                for part in value.values():
                    yield from self._ids(part, depth - 1)


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, (list, tuple)) else (value,)


def _before(owner: Any, name: str, note: Callable[[Any], None]) -> None:
    """Let ``note`` have the first argument of each call of a method before it runs."""
    method = getattr(owner, name, None)
    if method is None:
        return

    @functools.wraps(method)
    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            note(first)
        return method(first, *args, **kwargs)

    setattr(owner, name, call)


def _remember(ids: dict[str, None], request_id: str) -> None:
    """Add the id of a request as the newest, and forget the oldest of too many."""
    ids.pop(request_id, None)
    ids[request_id] = None
    if len(ids) > _SEEN_AT_MOST:
        del ids[next(iter(ids))]


def _changed(now: dict[str, float], start: dict[str, float]) -> dict[str, list[float]]:
    """Return the numbers that differ from those at the start, as ``[now, start]``."""
    both = {name: [number, start.get(name, 0)] for name, number in now.items()}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def _gauges(owner: Any, path: str) -> Iterator[tuple[str, float]]:
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        if name.startswith(_GAUGES) and isinstance(value, int):
            yield f"{path}.{name}", value


def _statistics(owner: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield what was counted and not reported yet: each step reports what it counted, so that
    nothing is left at rest."""
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        if type(value).__module__.startswith(_STATISTICS) and type(value).__name__.endswith(
            "Stats"
        ):
            counts = [n for n in vars(value).values() if type(n) in (int, float)]
            yield f"{path}.{name}", sum(counts)


def _is_done(value: Any) -> bool:
    """Return whether something is the future of a call that was answered."""
    done = getattr(value, "done", None)
    return callable(done) and done() is True


def _may_hold(value: Any) -> bool:
    """Return whether an object may hold requests: one of vLLM's managers, or of a class derived from
    one."""
    if isinstance(value, (str, int, float)):
        return False
    modules = (base.__module__ for base in type(value).__mro__)
    return any(module.startswith(_OWNERS) for module in modules) and not any(
        hasattr(value, name) for name in _NOT_SEARCHED
    )
