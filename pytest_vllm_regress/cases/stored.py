"""Find result files of earlier runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ..errors import UsageError
from ..util.files import distinct_files, is_special
from ..util.paths import cache_root
from .model import Case
from .proofs.rejudge import OBSERVATIONS_FILE
from .results import RunResult, read_results


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


def read_stored(
    files: Iterable[Path], say: Callable[[str], None], *, strict: bool
) -> list[RunResult]:
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
