"""What V1 still holds of requests: read from vLLM's own objects, in the process that has them.

No container is named here, because each release has others: every container of the scheduler, of
what it manages, and of the engine core is searched for the ids of requests that the core was given.
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
_OWNERS = ("vllm.v1.core", "vllm.v1.structured_output")
"""Modules whose classes may hold requests, with their subpackages."""
_OF_THE_LAST_STEP = frozenset({"prev_step_scheduled_req_ids"})
"""Attributes that say what the last step did; they are replaced by the next one."""
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

    def read(self) -> dict[str, Any]:
        """Return the ids in each container, and the names of those that this release lacks."""
        there = [name for name in self._NAMES if hasattr(self._processor, name)]
        held = {f"output_processor.{name}": list(getattr(self._processor, name)) for name in there}
        streams = getattr(self._processor, there[0], {})
        return {
            "held": {name: ids for name, ids in held.items() if ids},
            "live": list(streams),
            "missing": [name for name in self._NAMES if name not in there],
        }


class Core:
    """What the engine core holds of the requests that it was given."""

    part = "core"

    def __init__(self, core: Any) -> None:
        self._core = core
        self._seen: dict[str, None] = {}
        self._start = self._numbers()
        add = core.add_request

        @functools.wraps(add)
        def add_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            self._seen[request.request_id] = None
            if len(self._seen) > _SEEN_AT_MOST:
                del self._seen[next(iter(self._seen))]
            return add(request, *args, **kwargs)

        core.add_request = add_request

    def read(self) -> dict[str, Any]:
        """Return the ids in each container, numbers that differ from those at the start as
        ``[now, start]``, and the names of those that this release lacks.

        A connector may keep the blocks of a request that has ended: then nothing is known.
        """
        if getattr(self._core.scheduler, "connector", None) is not None:
            return {"held": {}, "numbers": {}, "missing": ["anything beside a KV connector"]}
        held: Held = {}
        self._search(self._core, "core", held, {id(self._core)})
        now = self._numbers()
        return {
            "held": held,
            "numbers": {
                name: [number, self._start[name]]
                for name, number in now.items()
                if number != self._start[name]
            },
            "missing": [name for name in _NUMBERS if name not in now],
        }

    def _search(self, owner: Any, path: str, held: Held, visited: set[int]) -> None:
        """Add what each container of an object holds, and of those below it."""
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if name in _OF_THE_LAST_STEP:
                continue
            where = name if path == "core" else f"{path}.{name}"
            if isinstance(value, _CONTAINERS):
                ids = sorted(set(self._ids(value, _DEPTH)))
                if ids:
                    held[where] = ids
            for part in value if isinstance(value, (list, tuple)) else (value,):
                if _may_hold(part) and id(part) not in visited:
                    visited.add(id(part))
                    self._search(part, where, held, visited)

    def _ids(self, value: Any, depth: int) -> Iterator[str]:
        """Yield the ids of requests in a container, and in those in it."""
        request_id = value if isinstance(value, str) else getattr(value, "request_id", None)
        if isinstance(request_id, str):
            if request_id in self._seen:
                yield request_id
        elif depth and isinstance(value, _CONTAINERS):
            parts = value.queue if isinstance(value, queue.Queue) else value
            for part in parts:
                yield from self._ids(part, depth - 1)
            if isinstance(value, dict):
                for part in value.values():
                    yield from self._ids(part, depth - 1)

    def _numbers(self) -> dict[str, float]:
        numbers = {}
        for title, (path, names) in _NUMBERS.items():
            owner = self._core.scheduler
            for step in path:
                owner = getattr(owner, step, None)
            name = next((name for name in names if hasattr(owner, name)), None)
            if name is not None:
                value = getattr(owner, name)
                numbers[title] = value() if callable(value) else value
        return numbers


def _may_hold(value: Any) -> bool:
    """Return whether an object may hold requests: one of vLLM's managers, or of a class derived from
    one. The pool of blocks is searched by none: it knows no requests, and is large."""
    modules = (base.__module__ for base in type(value).__mro__)
    return any(module.startswith(_OWNERS) for module in modules) and not (
        hasattr(value, "free_block_queue") or hasattr(value, "block_id") or _is_request(value)
    )


def _is_request(value: Any) -> bool:
    return hasattr(value, "request_id")
