"""What the processes of a child have logged since a moment: the text of the log in which a
verdict's symptom is searched.

For an engine the window begins when the test takes it and not with each request: an engine that one
request has killed is often noticed only at the next one. For a probe it begins with each call.

The text is masked here, when it is read (``util/masking.mask_log``), and from then on has the type
``Masked``; what counts as a secret is decided in
``util/masking/scanner.py`` and by the values that were registered. Masking a text again changes
nothing, and happens where masked and other text is joined (``dossier.py``, ``plugin/verdicts.py``).
"""

from __future__ import annotations

from pathlib import Path

from ...util.masking import Masked, join_masked, mask_log
from ...util.text import truncate_middle
from .dossier import ray_logs

MAX_CHARS = 100_000
"""Maximum characters kept of one log: its beginning and its end, so that neither the first error
nor the last is lost.

The nested tracebacks of one failed start can have 43,000 characters (vLLM 0.22, with the cause in
their middle).
"""
_MAX_BYTES = 2_000_000
_MAX_LOGS = 40


class LogWindow:
    """The growth of a child's log, and of Ray's logs, since ``restart``.

    At first it holds the whole logs.
    """

    def __init__(self, log: Path, ray_dir: Path | None = None) -> None:
        self._log = log
        self._ray_dir = ray_dir
        self._starts: dict[Path, int] = {}

    def restart(self) -> None:
        """Leave out everything logged so far."""
        self._starts = {path: _size(path) for path in self._paths()}

    def text(self, max_chars: int | None = MAX_CHARS) -> Masked:
        """Return everything written since the start of the window, masked.

        Of a log with more than ``max_chars`` the middle is left out.
        """
        texts = (_read_from(path, self._starts.get(path, 0)) for path in self._paths())
        return join_masked(
            "\n", (truncate_middle(text, max_chars or len(text)) for text in texts if text)
        )

    def _paths(self) -> list[Path]:
        return [self._log, *(ray_logs(self._ray_dir, _MAX_LOGS) if self._ray_dir else [])]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_from(path: Path, start: int) -> Masked:
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
        return Masked("")
    return mask_log((head + tail).decode(errors="replace").strip())
