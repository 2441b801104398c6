"""Inspection of model classes in a fork of this process.

vLLM inspects a model class in a new interpreter, so that the model's module cannot initialize CUDA
in its own process. That interpreter imports vLLM again. A fork gives the same protection and has
imported vLLM already. The result is stored in vLLM's own cache in this process.
"""

import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Callable


def inspect_models(architectures: list[str]) -> None:
    """Fill vLLM's cache for these model classes.

    Failures are ignored here; an engine that needs the class reports them.
    """
    with suppress(Exception):
        from vllm.model_executor.models import registry

        with _forking(registry):
            for architecture in architectures:
                model = registry.ModelRegistry.models.get(architecture)
                if model is not None:
                    registry._try_inspect_model_cls(architecture, model)


@contextmanager
def _forking(registry: Any) -> Iterator[None]:
    """Let vLLM's registry inspect in a fork of this process, which must have a single thread."""
    original = registry._run_in_subprocess
    registry._run_in_subprocess = call_in_fork
    try:
        yield
    finally:
        registry._run_in_subprocess = original


def call_in_fork(function: Callable[[], Any]) -> Any:
    """Return the result of ``function()``, called in a fork of this process.

    Raises ``RuntimeError`` if the fork fails.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            _load_plugins()
            with os.fdopen(writer, "wb") as file:
                pickle.dump(function(), file)
            status = 0
        except BaseException as error:
            print(f"inspecting a model class: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        pickled = file.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise RuntimeError(
            f"the fork that was to inspect a model class ended with wait status {status}"
        )
    return pickle.loads(pickled)


def _load_plugins() -> None:
    """Load vLLM's plug-ins, as its own subprocess does."""
    with suppress(ImportError):
        from vllm.plugins import load_general_plugins

        load_general_plugins()
