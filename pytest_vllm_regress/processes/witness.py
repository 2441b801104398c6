"""What a verdict may look at of an engine's processes: what they have written since a moment, and which of them are gone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil

from ..errors import Part
from ..util.masking import mask
from ..util.text import bounded
from . import family, shortages
from .dossier import ray_logs

MAX_CHARS = 30_000
"""Kept of one log: beginning and end, so that neither the first error nor the last is lost."""
_MAX_BYTES = 2_000_000
_MAX_LOGS = 40


class Witness:
    """Of one family: the growth of its logs (Ray's too) since ``begin``, and the end of engine processes since ``take``."""

    def __init__(self, log: Path, ray_dir: Path | None = None) -> None:
        self._log = log
        self._ray_dir = ray_dir
        self._sizes: dict[Path, int] = {}
        self._room = shortages.look()
        self._engine: dict[psutil.Process, str] | None = None  # and how each is called
        self._lost: dict[psutil.Process, str] = {}  # the same, and how it ended

    def begin(self) -> None:
        """A phase begins, or a probe is called: what is in the logs already has nothing to do with it."""
        self._sizes = {path: _size(path) for path in self._paths()}

    def take(self, processes: Iterable[psutil.Process]) -> None:
        """A test takes the engine, which consists of these processes (helpers among them do not count)."""
        self.begin()
        self._lost = {}
        self._engine = {each: family.describe(each) for each in processes if not family.is_helper(each)}

    @property
    def has_engine(self) -> bool:
        """An engine was up here."""
        return self._engine is not None

    def lost(self) -> tuple[str, ...]:
        """The engine's processes that have ended, and how, in words."""
        for each, words in (self._engine or {}).items():
            if each not in self._lost and not family.lives(each):
                how = family.how_it_ended(each)
                self._lost[each] = f"{each.pid} has ended{how and ': '}{how}{words.removeprefix(str(each.pid))}"
        return tuple(self._lost.values())

    def log(self) -> str:
        """Everything written since the phase began, masked, bounded for each log."""
        return "\n".join(filter(None, (_since(path, self._sizes.get(path, 0)) for path in self._paths())))

    def room(self) -> str:
        """What the machine has left now, for dossiers."""
        return f"left: {shortages.look()}"

    def shortage(self, *, status: int | None = None, silent: bool = False) -> str:
        """What the family may have failed for want of, as the end of a sentence; empty where nothing was short."""
        found = shortages.shortage(self._room, shortages.look(), self.log(), status=status, silent=silent)
        return f"; {found}" if found else ""

    def parts(self, **more: str) -> dict[Part, str]:
        """The log, who is gone, and ``more`` by the part's name; empty ones are left out."""
        gone = [f"engine process {words}" for words in self.lost()]
        exits = "\n".join(filter(None, (more.pop("exit", ""), *gone)))
        found = {"log": self.log(), "exit": exits, **more}
        return {Part(name): text for name, text in found.items() if text}

    def _paths(self) -> list[Path]:
        return [self._log, *(ray_logs(self._ray_dir, _MAX_LOGS) if self._ray_dir else [])]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _since(path: Path, start: int) -> str:
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(start)
            head = log.read(min(_MAX_BYTES, size - start)) if size > start else b""
            tail = b""
            if size - start > _MAX_BYTES:
                log.seek(max(start + _MAX_BYTES, size - _MAX_BYTES))
                tail = log.read(_MAX_BYTES)
    except OSError:
        return ""
    return bounded(mask((head + tail).decode(errors="replace").strip()), MAX_CHARS)
