"""Probes: functions called in the target, from a test's own ``probe.py`` or from the built-in
modules."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..util.deadline import DeadlineFor
from ..util.paths import PACKAGE
from ..util.validation import did_you_mean

if TYPE_CHECKING:
    from ..errors import Parts
    from .processes.child import Child, Loan
    from .processes.child_processes import Leftover

BUILT_IN = ("batch_files", "frontend", "grammars", "parsers")
"""Modules of ``vllm_regress_target`` whose functions every test may call:

``vllm_probe("parsers:tool_calls", ...)``.
"""
_CALLED_ONCE = ("batch_files",)
"""Modules that run a command of vLLM.

Each call gets a process of its own, because the command may leave a closed event loop behind.
"""
TARGET = PACKAGE / "target_site" / "vllm_regress_target"
AtWork = Callable[[str, object], None]
"""Type of the fixture ``vllm_at_work``: takes the name of a mechanism and whether it was at work.
"""


def built_in_sources(module: str) -> tuple[Path, ...]:
    """Return the source files of a module of ``BUILT_IN``."""
    folder = TARGET / module
    return tuple(sorted(folder.glob("*.py"))) if folder.is_dir() else (folder.with_suffix(".py"),)


@functools.cache
def _functions(module: str) -> tuple[str, ...]:
    """Return the names of the public functions of a built-in module (one of ``BUILT_IN``)."""
    file = next(file for file in built_in_sources(module) if file.stem in ("__init__", module))
    names = (
        node.name
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    )
    return tuple(sorted(name for name in names if not name.startswith("_")))


class Probe:
    """A probe process. It is started at the first call and reused; after a hang or crash the next
    call starts a new one.

    Tests get it from the fixture ``vllm_probe``. ``start`` starts a process, ``file`` is the
    ``probe.py``, ``loan`` holds the terms of each call, and ``changed`` returns the arguments as
    this leg of the test changes them.
    """

    def __init__(
        self,
        start: Callable[[], Child],
        file: Path,
        deadline_for: DeadlineFor,
        loan: Loan,
        changed: Callable[[dict[str, Any]], dict[str, Any]] = lambda arguments: arguments,
    ) -> None:
        self._start, self._file, self._deadline, self._loan = start, file, deadline_for, loan
        self._changed = changed
        self._child: Child | None = None
        self._leftovers: tuple[Leftover, ...] = ()

    def __call__(self, function: str, /, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Run ``function(**arguments)`` in the target and return its JSON value.

        ``function`` names one in ``probe.py`` beside the test; ``"module:function"`` names one of a
        built-in module (``BUILT_IN``).
        ``timeout`` in seconds replaces the deadline of the probe phase. Raises what
        ``Child.request`` raises, and ``UsageError`` if there is no ``probe.py`` or no such built-in
        module.
        """
        source, name = self._locate(function)
        called_once = function.partition(":")[0] in _CALLED_ONCE
        if called_once:
            self._end()
        if self._child is None or not self._child.alive:
            self._child = self._start()
        request = {"file": source, "function": name, "arguments": self._changed(arguments)}
        try:
            with self._child.lend(self._loan):
                return self._child.request("call", self._deadline("probe", timeout), **request)
        finally:
            if called_once:
                self._end()

    def _locate(self, function: str) -> tuple[str, str]:
        """Return where the target finds ``function`` (a file, or a dotted module name) and its name
        there."""
        module, built_in, name = function.partition(":")
        if built_in:
            if module not in BUILT_IN:
                hint = did_you_mean(module, BUILT_IN)
                raise UsageError(
                    f"vllm_probe calls {function}: no built-in module {module!r}.{hint} There are: {', '.join(BUILT_IN)}"
                )
            functions = _functions(module)
            if name not in functions:
                raise UsageError(
                    f"vllm_probe calls {function}: the built-in module {module} has no function {name!r}.{did_you_mean(name, functions)} There "
                    f"are: {', '.join(functions)}"
                )
            return f"{TARGET.name}.{module}", name
        if not self._file.exists():
            raise UsageError(
                f"vllm_probe calls {function}(), but there is no {self._file}: write the function there"
            )
        return str(self._file), function

    def parts(self) -> Parts:
        """Return what the process logged; empty if none is running."""
        return self._child.failures.parts() if self._child is not None else {}

    def close(self) -> tuple[Leftover, ...]:
        """End the process. Returns what its processes left behind, which has been removed."""
        self._end()
        return self._leftovers

    def _end(self) -> None:
        if self._child is not None:
            self._leftovers += self._child.stop(self._deadline("stop", None))
            self._child = None
