"""Jobs as requests that another machine can run, and back: what a job needs of this machine's files goes into the request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..cases import proof, rejudge
from ..cases.model import find_cases
from ..environments.recipes import FILE, LOCKS, MAX_BYTES, find_file
from ..environments.sidecars import LOCKS as SIDECARS
from ..environments.sidecars import sidecar_locks
from ..errors import UsageError
from ..util.files import read_bounded
from .cell import CellRequest, Needs
from .runner import OUTER_TIMEOUT_S, Job, Options

CASES = "cases"
MAX_FILE = 4 * 1024 * 1024
_STAYS_HERE = {"README.md", proof.FILE, rejudge.FILE}
"""Of a case: what its tests do not read."""


def pack(job: Job, options: Options, gpus: int | None = None) -> CellRequest:
    """The job as a request. ``gpus`` for each environment on device gpu (default 1).

    Raises ``UsageError`` for an environment of source code, which needs a clone, and for a case with files that are no text.
    """
    from ..environments.names import resolve
    from ..environments.sources import names_interpreter

    recipes, locks = "", {}
    if not names_interpreter(job.environment):
        recipe = resolve(job.environment)
        if recipe.overlay is not None or recipe.build is not None:
            raise UsageError(
                f"{job.environment}: source code over a release needs a clone, which other machines do not have: run it here, without --on"
            )
        recipes = _text(find_file(), MAX_BYTES)
        locks = {lock.name: _text(lock, MAX_FILE) for lock in (recipe.lock, recipe.lock_local) if lock is not None}
        locks |= {f"{SIDECARS}/{lock.name}": _text(lock, MAX_FILE) for lock in sidecar_locks()}
    on_gpu = options.device == "gpu" or any(each in ("--vllm-gpu", "--vllm-device=gpu") for each in options.pytest_args)
    return CellRequest(
        environment=job.environment,
        recipes=recipes,
        locks=locks,
        cases=tuple(case.id for case in job.cases),
        files=dict(_files(job)),
        device=options.device or "",
        pytest_args=options.pytest_args,
        needs=Needs(gpus=(gpus or 1) if on_gpu else 0),
        deadline_s=2.0 * OUTER_TIMEOUT_S,
    )


def unpack(request: CellRequest, folder: Path) -> tuple[Job, Options]:
    """The request's files below ``folder``, which is a project then: with it as working directory the environment's name has its meaning."""
    files = {f"{CASES}/{name}": text for name, text in request.files.items()}
    files |= {f"{LOCKS}/{name}": text for name, text in request.locks.items()}
    files |= {FILE: request.recipes} if request.recipes else {}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    known = {case.id: case for case in find_cases(folder / CASES)} if request.cases else {}
    if unknown := [each for each in request.cases if each not in known]:
        raise UsageError(f"the request has no files of {', '.join(unknown)}")
    options = Options(request.device or None, None, request.pytest_args)
    return Job(request.environment, tuple(known[each] for each in request.cases), {}), options


def _files(job: Job) -> Iterator[tuple[str, str]]:
    for root in {case.directory.parent: None for case in job.cases}:
        yield from ((path.name, _text(path, MAX_FILE)) for path in sorted(root.glob("*.py")))
    for case in job.cases:
        for path in sorted(case.directory.rglob("*")):
            if path.is_file() and path.name not in _STAYS_HERE and "__pycache__" not in path.parts:
                yield path.relative_to(case.directory.parent).as_posix(), _text(path, MAX_FILE)


def _text(path: Path, limit: int) -> str:
    try:
        return read_bounded(path, limit, what="a file that travels").decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8, so it cannot travel to another machine: run the case here") from None
