"""Engine reuse: equal keys share one engine; the least recently used is stopped when there are too many."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar, cast

from ..errors import ChildError, LimitExceeded
from ..processes.child import Leftover


class Poolable(Protocol):
    """What the pool needs of an engine or a server."""

    def check(self) -> None: ...

    def stop(self, timeout: float | None = None) -> tuple[Leftover, ...]: ...


E = TypeVar("E", bound=Poolable)


class EnginePool:
    """Keeps at most ``capacity`` engines alive. ``charge`` is told what an engine left behind, and the name of its last user."""

    def __init__(self, capacity: int, charge: Callable[[str, tuple[Leftover, ...]], None]) -> None:
        self._capacity = max(1, capacity)
        self._charge = charge
        self._engines: OrderedDict[Hashable, Poolable] = OrderedDict()
        self._users: dict[Hashable, str] = {}

    def __len__(self) -> int:
        return len(self._engines)

    def acquire(self, key: Hashable, user: str, start: Callable[[], E]) -> E:
        """The living engine of ``key``, proven by ``check``, or a new one. A new one first makes room, as ``make_room`` does.

        One key always starts one kind of engine.
        """
        engine = self._engines.get(key)
        if engine is not None:
            try:
                engine.check()
            except ChildError:
                self.drop(key)
                engine = None
        if engine is None:
            self.make_room(user)
            engine = start()
            self._engines[key] = engine
        self._engines.move_to_end(key)
        self._users[key] = user
        return cast(E, engine)

    def make_room(self, user: str) -> None:
        """Stop engines, least recently used first, until one more may start. Raises ``LimitExceeded`` when ``user`` itself uses them all."""
        while len(self._engines) >= self._capacity:
            if not self.drop_idle(user):
                words = f"{user} asks for more engines at the same time than the {self._capacity} that --vllm-max-engines allows"
                raise LimitExceeded(words, phase="start")

    def drop_idle(self, user: str = "") -> bool:
        """Stop the least recently used engine that ``user`` does not use. False: there is none."""
        idle = next((key for key in self._engines if self._users[key] != user), None)
        if idle is not None:
            self.drop(idle)
        return idle is not None

    def drop(self, key: Hashable) -> None:
        """Stop the engine of ``key`` and charge its last user with what it left. Nothing happens when there is none."""
        engine = self._engines.pop(key, None)
        if engine is None:
            return
        user = self._users.pop(key)
        try:
            left = engine.stop()
        except ChildError as error:
            left = (Leftover("engine that did not stop:", str(error).splitlines()[0]),)
        if left:
            self._charge(user, left)

    def clear(self) -> None:
        """Stop every engine."""
        while self._engines:
            self.drop(next(iter(self._engines)))
