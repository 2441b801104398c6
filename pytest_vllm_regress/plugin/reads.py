"""Which files of the project a test reads beyond those that a proof covers: their change would turn
a verdict round, and no proof would become stale (``cases/proofs/fingerprint.py``)."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ..cases.proofs.fingerprint import imported_modules
from ..util.files import files_below
from ..util.paths import PACKAGE

_LIBRARIES = (str(Path(os.__file__).parent), "<")
"""Where code lies that opens files for somebody else; frozen modules have no file."""
_watch: _Watch | None = None
"""The running test's. An audit hook cannot be removed, so there is one for the whole process."""


class _Watch:
    """The files that the test of the case in ``folder`` has opened to read, without those that a
    proof covers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._project = f"{self._folder.parent.parent}{os.sep}"
        self.found: dict[str, None] = {}

    @functools.cached_property
    def _covered(self) -> set[Path]:
        sources = [file for file in files_below(self._folder) if file.suffix == ".py"]
        return {*imported_modules(self._folder, sources)}

    def opened(self, name: str, flags: int, frame: FrameType | None) -> None:
        path = os.path.realpath(name)
        if not path.startswith(self._project) or flags & os.O_ACCMODE == os.O_WRONLY:
            return
        inside = Path(path[len(self._project) :])
        if inside.parts[-1:] and inside.suffix == ".pyc" and inside.parent.name == "__pycache__":
            inside = inside.parent.parent / f"{inside.name.partition('.')[0]}.py"
        file = Path(self._project, inside)
        if (
            any(part.startswith(".") for part in inside.parts)
            or file.is_relative_to(self._folder)
            or file.is_relative_to(PACKAGE)
            or "site-packages" in inside.parts
            or file in self._covered
            or not file.is_file()
        ):
            return
        while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
            frame = frame.f_back
        if frame is not None and Path(frame.f_code.co_filename).is_relative_to(self._folder):
            self.found[str(inside)] = None


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """While a test of the case in ``folder`` runs, collect the files of the project that it reads
    and no proof covers, relative to the project. The list is complete at the end."""
    global _watch
    found: list[str] = []
    _install()
    _watch = _Watch(folder)
    try:
        yield found
    finally:
        found += _watch.found
        _watch = None


@functools.cache
def _install() -> None:
    sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or (watch := _watch) is None:
        return
    name, _, flags = arguments
    if isinstance(name, (str, bytes)):
        # A hook that raises would end the test's own call.
        with contextlib.suppress(Exception):
            watch.opened(os.fsdecode(name), flags or 0, sys._getframe(1))
