"""A call in a thread of its own, so that whoever waits for its end can look after other things meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Aside(Generic[T]):
    """``call`` begins at once; ``fileno`` can be read when it has ended. The thread keeps no process alive: left alone, it ends with what it asks."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._ended, end = os.pipe()
        threading.Thread(target=self._run, args=(end,), daemon=True).start()

    def __enter__(self) -> Aside[T]:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._ended)

    def fileno(self) -> int:
        return self._ended

    def result(self) -> T:
        """What the call returned, once it has ended; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._value[0]

    def _run(self, end: int) -> None:
        try:
            self._value.append(self._call())
        except BaseException as error:
            self._error = error
        finally:
            os.close(end)
