"""Engine reuse: when does a test get a running engine, and when is one stopped?

Tests share an engine if its key is equal: environment, ``EngineSpec`` (with the changes of a
control leg) and front. Exceptions:

- ``fresh=True`` on the marker: the test gets an engine of its own, which is stopped after it
  (``plugin/fixtures.py``).
- An engine whose ``check`` fails when the next test asks for it is replaced (``acquire``).
- After a test it is stopped if it must not be used again: the test raised, the leg ran on a smaller
  engine (``--vllm-minimize``), the child has
  ended, or an injected fault ends the engine (``plugin/fixtures._is_spent``). One that is held and
  still works stays (``give_up``), unless a test has sent it a signal (``spent``).
- The least recently used idle engine is stopped when there would be more than
  ``--vllm-limit engines``, or when GPUs are needed (``drop_idle``).
  Idle: nobody holds it (``vllm_engines`` holds until ``release``), and the test that asks is not
  its last user.

A shared engine keeps what vLLM keeps between requests: prefix cache, loaded adapters, sleep level.
Per test it starts with a new log window, a new list of the processes that must live, and the test's
own schema filter and probe file (``Child.lend``, ``Engine.lend``).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

from ..errors import ChildError, LimitExceeded
from .processes.child_processes import Leftover


class Poolable(Protocol):
    """An engine or a server, as the pool uses it."""

    @property
    def spent(self) -> bool: ...

    def check(self) -> None: ...

    def stop(self, timeout: float | None = None) -> tuple[Leftover, ...]: ...


class EnginePool:
    """Keeps at most ``capacity`` engines alive.

    ``charge`` is called with the last user of an engine and what it left behind.
    """

    def __init__(self, capacity: int, charge: Callable[[str, tuple[Leftover, ...]], None]) -> None:
        self._capacity = max(1, capacity)
        self._charge = charge
        self._engines: OrderedDict[Hashable, Poolable] = OrderedDict()
        self._users: dict[Hashable, str] = {}
        self._held: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._engines)

    def acquire(self, key: Hashable, user: str, start: Callable[[], Poolable]) -> Poolable:
        """Return the engine of ``key`` if ``check`` proves that it works, else a new one, after
        making room for it.

        One key always starts one kind of engine.
        """
        engine = self._engines.get(key)
        if engine is not None and not _works(engine):
            self.drop(key)
            engine = None
        if engine is None:
            self.make_room(user)
            engine = start()
            self._engines[key] = engine
        self._engines.move_to_end(key)
        self._users[key] = user
        return engine

    def make_room(self, user: str) -> None:
        """Stop engines, least recently used first, until one more may start.

        Raises ``LimitExceeded`` if each of them is held or was started by ``user``.
        """
        while len(self._engines) >= self._capacity:
            if not self.drop_idle(user):
                words = f"{user} asks for more engines at the same time than the {self._capacity} that --vllm-limit engines allows"
                if in_use := sum(1 for key in self._engines if self._held[key]):
                    words += f"; {in_use} are held by vllm_engines until they are released"
                raise LimitExceeded(words, phase="start")

    def drop_idle(self, user: str = "") -> bool:
        """Stop the least recently used engine that nobody holds and ``user`` does not use.

        Return False if there is none.
        """
        idle = next(
            (key for key in self._engines if self._users[key] != user and not self._held[key]), None
        )
        if idle is not None:
            self.drop(idle)
        return idle is not None

    def hold(self, key: Hashable) -> None:
        """Keep the engine of ``key`` until it was released as often as it was held."""
        self._held[key] += 1

    def release(self, key: Hashable) -> None:
        """Undo one ``hold``.

        After the last one the engine may be stopped for others, as the most recently used.
        """
        self._held[key] = max(0, self._held[key] - 1)
        if key in self._engines and not self._held[key]:
            self._release(key)

    def release_all(self, user: str) -> None:
        """Allow every engine that ``user`` used, and that nobody holds, to be stopped for others,
        and for ``user`` itself."""
        for key in [
            key for key in self._engines if self._users[key] == user and not self._held[key]
        ]:
            self._release(key)

    def _release(self, key: Hashable) -> None:
        self._users[key] += " (released)"  # until the next user, nobody uses it
        self._engines.move_to_end(key)

    def give_up(self, key: Hashable) -> None:
        """Stop the engine of ``key`` after a failure of one user, unless others hold it and it
        still works."""
        engine = self._engines.get(key)
        if engine is None or not self._held[key] or not _works(engine):
            self.drop(key)

    def drop(self, key: Hashable) -> None:
        """Stop the engine of ``key``, if there is one, and charge its last user with what it left
        behind."""
        engine = self._engines.pop(key, None)
        if engine is None:
            return
        user = self._users.pop(key)
        try:
            leftovers = engine.stop()
        except ChildError as error:
            leftovers = (Leftover("engine that did not stop:", str(error).splitlines()[0]),)
        if leftovers:
            self._charge(user, leftovers)

    def clear(self) -> None:
        """Stop every engine."""
        while self._engines:
            self.drop(next(iter(self._engines)))


def _works(engine: Poolable) -> bool:
    if engine.spent:
        return False
    try:
        engine.check()
    except ChildError:
        return False
    return True
