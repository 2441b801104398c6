"""Check and build the environments of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import UsageError
from .batch import Batch
from .progress import Say


def build_with_cache(say: Say) -> Callable[[str], None]:
    """Return a function that builds an environment by name in the user's cache, and accepts an interpreter's path as it is."""
    from ..environments.cache import EnvironmentCache
    from ..environments.names import resolve
    from ..environments.sources import names_interpreter

    cache = EnvironmentCache()

    def build(name: str) -> None:
        if not names_interpreter(name):
            cache.ensure(resolve(name), progress=say)

    return build


def check_environments(batches: Sequence[Batch]) -> None:
    """Raise ``UsageError`` for an unknown name, a release that does not exist, or an interpreter without a package that cases are about."""
    from ..engines.target import inspect
    from ..environments.names import resolve, unavailable_reason
    from ..environments.sources import names_interpreter

    for batch in batches:
        if names_interpreter(batch.environment):
            if not Path(batch.environment).expanduser().exists():
                raise UsageError(
                    f"--env {batch.environment}: no such interpreter. Give an interpreter's path or an environment's name"
                )
            inspect(batch.environment, Path(batch.environment).expanduser().absolute(), "auto")
        else:
            resolve(batch.environment)
            if why := unavailable_reason(batch.environment):
                raise UsageError(why)
