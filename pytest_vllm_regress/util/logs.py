"""Logging of the command: ``-v``, ``-vv`` and ``--log-file`` attach handlers to the logger
``vllm_regress``.

Without these options nothing is logged. Under pytest the same logger propagates to the root, where
``log_cli`` and ``caplog`` see it. Records are masked and escaped once, before any handler formats
them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from .masking import mask
from .text import printable

LOGGER = logging.getLogger("vllm_regress")
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class MaskSecrets(logging.Filter):
    """Mask secrets and escape control characters in a record: in its message, its traceback and its
    stack."""

    _formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _safe(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = self._formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = _safe(record.exc_text)
        if record.stack_info:
            record.stack_info = _safe(record.stack_info)
        return True


class _MaskingHandler(logging.Handler):
    """Prints nothing.

    It comes before all other handlers, also pytest's, and they get the record as its filter leaves
    it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(MaskSecrets())

    def emit(self, record: logging.LogRecord) -> None:
        pass


LOGGER.addHandler(_MaskingHandler())


class _File(logging.FileHandler):
    """A log file.

    When it cannot be written, for example on a full disk, the log ends with one warning, and the
    command goes on.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        super().__init__(path, encoding="utf-8")
        self._warn = warn

    def handleError(self, record: logging.LogRecord) -> None:
        LOGGER.removeHandler(self)
        self._warn(f"vllm-regress: the log ends here: {self.baseFilename}: {sys.exception()}")

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written is still in the buffer
            super().close()


@contextlib.contextmanager
def logging_to(verbosity: int, file: Path | None, warn: Callable[[str], None]) -> Iterator[None]:
    """Log to standard error (``verbosity`` 1: INFO, 2 or more: DEBUG; 0: not at all) and append
    DEBUG and above to ``file``.

    Raises ``OSError`` if the file cannot be opened. ``warn``: called with a line when it cannot be
    written later.
    """
    handlers: list[logging.Handler] = []
    if verbosity:
        handlers.append(
            _prepare(
                logging.StreamHandler(sys.stderr), logging.INFO if verbosity == 1 else logging.DEBUG
            )
        )
    if file is not None:
        handlers.append(_prepare(_File(file, warn), logging.DEBUG))
    previous_level = LOGGER.level
    if handlers:
        LOGGER.setLevel(min(handler.level for handler in handlers))
    for handler in handlers:
        LOGGER.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            LOGGER.removeHandler(handler)
            handler.close()
        LOGGER.setLevel(previous_level)


def _prepare(handler: logging.Handler, level: int) -> logging.Handler:
    handler.setLevel(level)
    handler.setFormatter(logging.Formatter(_FORMAT))
    return handler


def _safe(text: str) -> str:
    return printable(mask(text))
