"""A blocking call in a thread of its own, so that its caller can supervise other things while it
waits.

The waiting thread can then check the deadline, the processes and the lifeline as in every other
wait. So an answer that arrives in pieces but never ends is a hang, too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Starts ``call`` at once. ``fileno`` becomes readable when the call has ended.

    The thread is a daemon and does not keep this process alive.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._ended, end = os.pipe()
        threading.Thread(target=self._run, args=(end,), daemon=True).start()

    def __enter__(self) -> BackgroundCall[T]:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._ended)

    def fileno(self) -> int:
        return self._ended

    def result(self) -> T:
        """Return what the call returned, or raise what it raised.

        Call it only when the call has ended.
        """
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
