"""Check and build the environments of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import UsageError
from ..util.files import expand_home
from .batch import Batch
from .progress import Say


def build_with_cache(say: Say) -> Callable[[str], None]:
    """Return a function that builds an environment by name in the user's cache, and accepts an
    interpreter's path as it is."""
    from ..environments.cache import EnvironmentCache
    from ..environments.names import resolve
    from ..environments.sources import names_interpreter

    cache = EnvironmentCache()

    def build(name: str) -> None:
        if not names_interpreter(name):
            cache.ensure(resolve(name), progress=say)

    return build


def check_environments(batches: Sequence[Batch], *, gpu: bool = False) -> None:
    """Raise ``UsageError`` for an unknown name, a release that does not exist, or an interpreter
    without a package that cases are about.

    ``gpu``: real GPUs are asked for; see ``check_gpu_fits``.
    """
    from ..engines.target import inspect
    from ..environments.names import resolve, unavailable_reason
    from ..environments.sources import names_interpreter

    for batch in batches:
        if names_interpreter(batch.environment):
            if not expand_home(batch.environment).exists():
                raise UsageError(
                    f"--env {batch.environment}: no such interpreter. Give an interpreter's path or an environment's name"
                )
            inspect(batch.environment, expand_home(batch.environment).absolute(), "auto")
        else:
            resolve(batch.environment)
            if why := unavailable_reason(batch.environment):
                raise UsageError(why)
    if gpu:
        check_gpu_fits([batch.environment for batch in batches])


def check_gpu_fits(environments: Sequence[str]) -> None:
    """Raise ``UsageError`` if driver and GPUs of this machine are too old for all of the
    environments, which need not be built."""
    from ..engines.placement import Placement
    from ..engines.target import built_target

    placement = Placement(lambda line: None)
    problems = []
    for name in dict.fromkeys(environments):
        target = built_target(name, "gpu")
        try:
            placement.check_unbuilt(name) if target is None else placement.devices(target)
        except UsageError as error:
            problems.append(error)
        else:
            return
    if problems:
        raise problems[0]
