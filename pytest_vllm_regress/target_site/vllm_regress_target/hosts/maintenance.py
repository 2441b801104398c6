"""Operations on a whole engine: sleep, wake up, reset the prefix cache."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Awaitable

from .. import Unsupported
from ..dialect import engines, installed


class EngineMaintenance(ABC):
    """The part of the engine role that operates on the engine as a whole."""

    _engine: Any

    def sleep(self, level: int) -> None:
        """Put the engine to sleep.

        Level 1 drops the KV cache and offloads the weights; level 2 drops both.
        """
        self._call_engine("sleep", level=level)

    def wake_up(self) -> None:
        """Wake the engine: restore everything that ``sleep`` released."""
        self._call_engine("wake_up")

    def reset_prefix_cache(self) -> None:
        """Reset the prefix cache, so that no block of an earlier prompt is reused."""
        self._call_engine("reset_prefix_cache")

    def _call_engine(self, method: str, **arguments: Any) -> None:
        function = getattr(self._engine, method, None)
        if function is None:
            raise Unsupported(
                "{} has no {}".format(type(self._engine).__name__, method),
                refused_by="vLLM {}".format(installed.version()),
            )
        with engines.as_unsupported():
            value = function(**arguments)
            if asyncio.iscoroutine(value):
                self._run(value)

    @abstractmethod
    def _run(self, coroutine: Awaitable[Any]) -> Any:
        """Run a coroutine to its end on the engine's event loop."""
