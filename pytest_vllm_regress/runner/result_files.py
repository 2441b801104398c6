"""Save the results of a run where the user asked, and keep copies in the cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ..cases.results import RunResult, write_results
from ..cases.stored import is_results_file
from ..errors import UsageError
from ..util.files import check_writable
from ..util.signals import blocked
from .progress import Say

KEPT_COPIES = 20
"""Result files that are kept in the cache."""


def check_destination(destination: Path | None) -> None:
    """Raise ``UsageError`` if results cannot be written there.

    Called before the run, which may take hours.
    """
    if destination is not None:
        check_writable(
            destination if is_results_file(destination) else destination / "results.json"
        )


@blocked()
def save_results(
    run: RunResult, destination: Path | None, cache: Path, say: Say, now: float | None = None
) -> Path | None:
    """Write a copy of the results into the cache, and the results where the user asked (a
    directory, or a file ending in .json).

    A signal that ends the command waits. Return the path that the user asked for, if any.
    Raises ``UsageError`` if it cannot be written, which says where the copy is.
    """
    name = f"vllm-regress-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{os.getpid()}.json"
    copied = False
    try:
        write_results(cache / name, run)
        copied = True
        for oldest in sorted(cache.glob("vllm-regress-*.json"))[:-KEPT_COPIES]:
            oldest.unlink(missing_ok=True)
    except (OSError, UsageError) as error:
        say(f"no copy was kept: {error}")
    if destination is None:
        return None
    written = destination if is_results_file(destination) else destination / name
    try:
        write_results(written, run)
    except UsageError as error:
        raise UsageError(
            f"{error}. A copy of the results is in {cache / name}" if copied else str(error)
        ) from None
    return written


def rescue_to(destination: Path | None, cache: Path, say: Say) -> Callable[[RunResult], None]:
    """Return a function for ``RunRequest.rescue`` that saves results as ``save_results`` does and
    says where they are."""

    def rescue(run: RunResult) -> None:
        if run.results:
            written = save_results(run, destination, cache, say)
            say(f"the run ends early; the results so far are in {written or cache}")

    return rescue
