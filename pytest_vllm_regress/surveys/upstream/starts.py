"""How long a server may take to start in the running test, and the error with its dossier if it
does not."""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from pathlib import Path

from ...errors import ChildDied, ChildError, DeadlineExceeded

DOSSIERS = "VLLM_REGRESS_DROP_IN_DOSSIERS"
"""Folder for the dossiers of servers that do not start. Without it, the errors have them whole."""
START_S = 240.0
"""Seconds that a server may take to start, where the test sets no limit. As upstream's."""
_DOSSIER_S = 15.0
"""Seconds that are kept of a test for the dossier of a server and the end of its processes."""
_MAX_NAME = 100
_test_ends = math.inf


def begin_test(seconds: float) -> None:
    """Note that a test begins which is interrupted after ``seconds``."""
    global _test_ends
    _test_ends = time.monotonic() + seconds


def start_limit(wanted: float | None) -> float:
    """Return the seconds that a server may take to start: as ``wanted``, but no longer than the
    test leaves for it and its dossier."""
    return max(1.0, min(wanted or START_S, _test_ends - _DOSSIER_S - time.monotonic()))


def start_error(error: ChildError) -> RuntimeError:
    """Return upstream's error for a server that did not start: with the dossier, or in one line
    where that is in a file."""
    how = "Server failed"
    if isinstance(error, DeadlineExceeded):
        how = "Server failed to start in time"
    elif isinstance(error, ChildDied):
        how = "Server exited unexpectedly"
    dossier = _save(str(error))
    return RuntimeError(
        f"{how}.\n{error}" if dossier is None else f"{how}: {error.args[0]}; dossier: {dossier}"
    )


def _save(dossier: str) -> Path | None:
    """Write a dossier to a new file named after the running test.

    Return its path; None without a folder for dossiers.
    """
    folder = os.environ.get(DOSSIERS)
    if not folder:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    test = re.sub(
        r"[^\w.]+", "-", os.environ.get("PYTEST_CURRENT_TEST", "server").rpartition(" ")[0]
    )[-_MAX_NAME:]
    handle, path = tempfile.mkstemp(prefix=f"{test.strip('-')}-", suffix=".txt", dir=folder)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(dossier + "\n")
    return Path(path)
