"""Save the results of a run where the user asked, keep copies in the cache, and find them again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ..cases.model import Case
from ..cases.proofs.rejudge import OBSERVATIONS_FILE
from ..cases.results import RunResult, read_results, write_results
from ..errors import UsageError
from ..util.files import check_writable, distinct_files, is_special
from ..util.paths import cache_root
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


def is_results_file(destination: Path) -> bool:
    """Whether results go to this very file; else it is a folder for files with names of their own."""
    return destination.suffix == ".json" or is_special(destination)


def result_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files at ``paths`` and in directories among them; without paths, the result file
    of the last run."""
    if not paths:
        stored = sorted((cache_root() / "results").glob("*.json"))
        if not stored:
            raise UsageError(
                "no run is stored yet: give result files, or start a run with `vllm-regress run`"
            )
        return stored[-1:]
    for path in paths:
        if path.is_dir() and not any(path.glob("*.json")):
            raise UsageError(f"{path}: no result file (*.json) in this directory")
    return _expand(paths)


def stored_results(case: Case, paths: Sequence[Path]) -> list[Path]:
    """Return the files at ``paths``; without paths, the observations of the case's proof and the
    last runs."""
    recorded = (case.directory / OBSERVATIONS_FILE, cache_root() / "results")
    places = paths or [path for path in recorded if path.exists()]
    files = _expand(places)
    if not files:
        where = f" in {', '.join(map(str, places))}" if places else ""
        raise UsageError(f"no result files{where}. `vllm-regress run` writes them")
    return files


def read_stored(files: Iterable[Path], say: Say, *, strict: bool) -> list[RunResult]:
    """Read result files.

    Unless ``strict``, say which ones are skipped because they have another format: they may be
    copies of older runs.
    """
    runs = []
    for file in files:
        try:
            runs.append(read_results(file))
        except UsageError as error:
            if strict:
                raise
            say(f"skipped: {error}")
    return runs


def _expand(paths: Iterable[Path]) -> list[Path]:
    return distinct_files(
        file
        for path in paths
        for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])
    )
