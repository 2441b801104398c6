"""What is asked of an engine beside requests: to sleep, to wake, to forget its prefix cache."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Awaitable

from .. import Unsupported
from ..dialect import engines


class Upkeep(ABC):
    """The part of the engine role that works on the engine as a whole."""

    _engine: Any

    def sleep(self, level: int) -> None:
        """Level 1 gives up the KV cache and moves the weights away, level 2 gives up both."""
        self._tell("sleep", level=level)

    def wake_up(self) -> None:
        """Everything that sleeping gave up is there again."""
        self._tell("wake_up")

    def reset_prefix_cache(self) -> None:
        """No block of an earlier prompt is used again."""
        self._tell("reset_prefix_cache")

    def _tell(self, method: str, **arguments: Any) -> None:
        function = getattr(self._engine, method, None)
        if function is None:
            raise Unsupported(
                "{} has no {}".format(type(self._engine).__name__, method),
                refused_by="vLLM {}".format(engines.version()),
            )
        with engines.refusals():
            value = function(**arguments)
            if asyncio.iscoroutine(value):
                self._run(value)

    @abstractmethod
    def _run(self, coroutine: Awaitable[Any]) -> Any:
        """Run it to its end on the engine's loop."""
