"""Engine reuse: equal keys share one engine; the least recently used is stopped when there are too many."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar, cast

from ..errors import ChildError, LimitExceeded
from ..processes.leftover import Leftover


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
        self._held: Counter[Hashable] = Counter()

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
        """Stop engines, least recently used first, until one more may start. Raises ``LimitExceeded`` when all are held, or ``user``'s own."""
        while len(self._engines) >= self._capacity:
            if not self.drop_idle(user):
                words = f"{user} asks for more engines at the same time than the {self._capacity} that --vllm-max-engines allows"
                if held := sum(1 for key in self._engines if self._held[key]):
                    words += f"; {held} are held by vllm_engines until they are released"
                raise LimitExceeded(words, phase="start")

    def drop_idle(self, user: str = "") -> bool:
        """Stop the least recently used engine that nobody holds and ``user`` does not use. False: there is none."""
        idle = next((key for key in self._engines if self._users[key] != user and not self._held[key]), None)
        if idle is not None:
            self.drop(idle)
        return idle is not None

    def hold(self, key: Hashable) -> None:
        """The engine of ``key`` is not stopped for others until ``release``, as often as it was held."""
        self._held[key] += 1

    def release(self, key: Hashable) -> None:
        """Take one ``hold`` back. With the last it becomes free for others, as the one used last."""
        self._held[key] = max(0, self._held[key] - 1)
        if key in self._engines and not self._held[key]:
            self._users[key] += " (released)"  # who uses it next says so; until then nobody does
            self._engines.move_to_end(key)

    def give_up(self, key: Hashable) -> None:
        """After a failure of one user: stop the engine of ``key``, unless others hold it and it still works."""
        if self._held[key] and key in self._engines:
            try:
                return self._engines[key].check()
            except ChildError:
                pass
        return self.drop(key)

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
