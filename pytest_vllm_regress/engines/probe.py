"""Functions of a test's own ``probe.py``, called in the target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..processes.child import Child
from ..processes.leftover import Leftover
from ..util.deadline import DeadlineFor

AtWork = Callable[[str, object], None]
"""What the fixture ``vllm_at_work`` hands out: names what a test needs to see at work, and says whether it was."""


class Probe:
    """One probe process, started at the first call and reused; after a hang or crash the next call starts a new one.

    Tests get it from the fixture ``vllm_probe``. ``start`` gives a fresh process, ``file`` is the ``probe.py``, ``on_reply`` hears of every answer,
    ``changed`` gives the arguments as this leg of the test sets them.
    """

    def __init__(
        self,
        start: Callable[[], Child],
        file: Path,
        deadline_for: DeadlineFor,
        on_reply: Callable[[str], None],
        changed: Callable[[dict[str, Any]], dict[str, Any]] = lambda arguments: arguments,
    ) -> None:
        self._start, self._file, self._deadline, self._on_reply = start, file, deadline_for, on_reply
        self._changed = changed
        self._child: Child | None = None

    def __call__(self, function: str, /, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Run ``function(**arguments)`` in the target and return its JSON value. ``timeout`` in seconds replaces the probe phase's.

        Raises what ``Child.request`` raises, and ``UsageError`` where there is no ``probe.py``.
        """
        if not self._file.exists():
            raise UsageError(f"vllm_probe calls {function}(), but there is no {self._file}: write the function there")
        if self._child is None or not self._child.alive:
            self._child = self._start()
            self._child.on_reply = self._on_reply
        self._child.witness.begin()
        asked = {"file": str(self._file), "function": function, "arguments": self._changed(arguments)}
        return self._child.request("call", self._deadline("probe", timeout), **asked)

    def close(self) -> tuple[Leftover, ...]:
        """End the process; returns what it left behind (already removed)."""
        return () if self._child is None else self._child.stop(self._deadline("stop", None))
