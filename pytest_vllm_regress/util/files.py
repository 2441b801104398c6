"""Files, written whole or not at all, and read within bounds."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from ..errors import UsageError


def write_whole(path: Path, content: str) -> None:
    """Put ``content`` into ``path``, or leave what was there. Raises ``UsageError`` when the place cannot be written."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}. Give another place, or make room there"
        ) from None
