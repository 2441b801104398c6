"""What vLLM learns about a model class in an interpreter of its own, learned in a fork of this process instead.

vLLM asks a new interpreter, which imports vLLM once more, so that a model's module cannot initialise CUDA in the asking process. A fork
keeps that promise, and has imported vLLM already. The answer goes where vLLM keeps its own: a cache of the process.
"""

import contextlib
import os
import pickle
import sys
from typing import Any, Callable, Iterator, List


def inspect_models(architectures: List[str]) -> None:
    """Fill vLLM's cache for these model classes. What fails is left to the engine that needs it, which says why."""
    with contextlib.suppress(Exception):
        from vllm.model_executor.models import registry

        with _forking(registry):
            for architecture in architectures:
                model = registry.ModelRegistry.models.get(architecture)
                if model is not None:
                    registry._try_inspect_model_cls(architecture, model)


@contextlib.contextmanager
def _forking(registry: Any) -> Iterator[None]:
    """While it lasts, vLLM's registry asks a fork of this process, which must have one thread."""
    own = registry._run_in_subprocess
    registry._run_in_subprocess = in_a_fork
    try:
        yield
    finally:
        registry._run_in_subprocess = own


def in_a_fork(function: Callable[[], Any]) -> Any:
    """The result of ``function()``, called in a fork of this process. Raises ``RuntimeError`` when there is none."""
    answer, result = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(answer)
            _load_plugins()
            with os.fdopen(result, "wb") as file:
                pickle.dump(function(), file)
            status = 0
        except BaseException as error:
            print("inspecting a model class: {!r}".format(error), file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    os.close(result)
    with os.fdopen(answer, "rb") as file:
        found = file.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise RuntimeError("the fork that was to inspect a model class ended with wait status {}".format(status))
    return pickle.loads(found)


def _load_plugins() -> None:
    """As vLLM does in its own subprocess."""
    with contextlib.suppress(ImportError):
        from vllm.plugins import load_general_plugins

        load_general_plugins()
