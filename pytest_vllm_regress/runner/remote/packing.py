"""Make a request from a batch, with the files that it needs from this machine, and a batch from a
request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...cases.loading import load_all_cases
from ...cases.proofs import proof, rejudge
from ...environments.recipes import FILE, LOCKS, MAX_BYTES, find_file
from ...environments.sidecars import LOCKS as SIDECARS
from ...environments.sidecars import sidecar_locks
from ...errors import UsageError
from ...util.files import files_below, read_bounded
from ..batch import Batch, Needs, RunOptions
from ..pytest_run import OUTER_TIMEOUT_S
from .wire import BatchRequest

CASES = "cases"
MAX_FILE = 4 * 1024 * 1024
_NOT_SENT = {"README.md", proof.FILE, rejudge.OBSERVATIONS_FILE}
"""Files of a case that its tests do not read."""


def needs_of(options: RunOptions, gpus: int | None = None) -> Needs:
    """Return what each batch needs. ``gpus``: how many on device gpu (default 1)."""
    return Needs(gpus=(gpus or 1) if options.asks_for_gpu else 0)


def pack(batch: Batch, options: RunOptions, needs: Needs) -> BatchRequest:
    """Return the request for a batch.

    Raises ``UsageError`` for an environment of source code, which needs a clone, and for a case
    with files that are not text.
    """
    from ...environments.names import resolve
    from ...environments.sources import names_interpreter

    recipes, locks = "", {}
    if not names_interpreter(batch.environment):
        recipe = resolve(batch.environment)
        if recipe.overlay is not None or recipe.build is not None:
            raise UsageError(
                f"{batch.environment}: source code over a release needs a clone, which other machines do not have: run it here, without --on"
            )
        recipes = _text(find_file(), MAX_BYTES)
        locks = {
            lock.name: _text(lock, MAX_FILE)
            for lock in (recipe.lock, recipe.lock_local)
            if lock is not None
        }
        locks |= {f"{SIDECARS}/{lock.name}": _text(lock, MAX_FILE) for lock in sidecar_locks()}
    return BatchRequest(
        environment=batch.environment,
        recipes=recipes,
        locks=locks,
        cases=tuple(case.id for case in batch.cases),
        files=dict(_files(batch)),
        device=options.device or "",
        pytest_args=options.pytest_args,
        needs=needs,
        deadline_s=2.0 * OUTER_TIMEOUT_S,
    )


def unpack(request: BatchRequest, folder: Path) -> tuple[Batch, RunOptions]:
    """Write the request's files below ``folder`` and return its batch and options.

    With ``folder`` as working directory the environment's name means what it means where the
    request was made.
    """
    files = {f"{CASES}/{name}": text for name, text in request.files.items()}
    files |= {f"{LOCKS}/{name}": text for name, text in request.locks.items()}
    files |= {FILE: request.recipes} if request.recipes else {}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    cases = {case.id: case for case in load_all_cases(folder / CASES)} if request.cases else {}
    if unknown := [case_id for case_id in request.cases if case_id not in cases]:
        raise UsageError(f"the request has no files of {', '.join(unknown)}")
    options = RunOptions(request.device or None, None, request.pytest_args)
    return Batch(
        request.environment, tuple(cases[case_id] for case_id in request.cases), {}
    ), options


def _files(batch: Batch) -> Iterator[tuple[str, str]]:
    for root in {case.directory.parent: None for case in batch.cases}:
        yield from ((path.name, _text(path, MAX_FILE)) for path in sorted(root.glob("*.py")))
    for case in batch.cases:
        for path in files_below(case.directory):
            if path.is_file() and path.name not in _NOT_SENT and "__pycache__" not in path.parts:
                yield path.relative_to(case.directory.parent).as_posix(), _text(path, MAX_FILE)


def _text(path: Path, limit: int) -> str:
    try:
        return read_bounded(path, limit, what="a file that is sent to another machine").decode(
            "utf-8"
        )
    except UnicodeDecodeError:
        raise UsageError(
            f"{path}: not UTF-8, so it cannot be sent to another machine: run the case here"
        ) from None
