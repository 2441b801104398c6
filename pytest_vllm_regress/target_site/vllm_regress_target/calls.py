"""Functions of probe files, and the frame that reports an exception to the controller."""

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import traceback
from typing import Any, Callable, Optional

from . import Unsupported
from .dialect.installed import is_engine_death
from .protocol import Frame

Operation = Callable[..., Any]
_NO_DEVICE = "Failed to infer device type"
"""vLLM's words where it does not know the simulated device: before 0.7 in probes."""


def failure(error: BaseException) -> Frame:
    """Build the frame that reports an exception to the controller: class, message, chain (root
    cause first) and traceback.

    ``engine_died``: an exception of the chain says that vLLM's engine is dead. ``claim``: the claim
    of an ``Unsupported``.
    """
    chain = _chain(error)
    if os.environ.get("VLLM_REGRESS_DEVICE") == "sim" and str(error).startswith(_NO_DEVICE):
        error = Unsupported(str(error), device="sim").with_traceback(error.__traceback__)
    return {
        "ok": False,
        "type": _name(error),
        "message": _bounded(str(error), 20000),
        "chain": [
            _bounded("{}: {}".format(_name(link).replace("builtins.", "", 1), link), 8000)
            for link in chain
        ],
        "traceback": _bounded(
            "".join(traceback.format_exception(type(error), error, error.__traceback__)), 60000
        ),
        "engine_died": any(map(is_engine_death, chain)),
        "claim": getattr(error, "claim", {}),
    }


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error and its causes in the order in which Python prints them, root cause first,
    at most 10."""
    chain: list[BaseException] = []
    link: Optional[BaseException] = error
    while link is not None and link not in chain and len(chain) < 10:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain[::-1]


def _name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def load_function(source: str, name: str) -> Operation:
    """Return the function ``name`` of ``source``: the path of a probe file, or the dotted name of
    one of this package's modules."""
    module = (
        importlib.import_module(source)
        if source.startswith(__package__ + ".")
        else _load_file(source)
    )
    function = getattr(module, name, None)
    if not inspect.isfunction(function) or name.startswith("_"):
        offered = sorted(
            n for n, f in vars(module).items() if inspect.isfunction(f) and not n.startswith("_")
        )
        raise LookupError(
            "{} has no probe function {!r}; it offers {}".format(
                source, name, ", ".join(offered) or "none"
            )
        )
    return function


def _load_file(file: str) -> Any:
    if file not in _MODULES:
        name = f"vllm_regress_probe_{len(_MODULES)}"
        spec = importlib.util.spec_from_file_location(name, file, loader=_Uncached(name, file))
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot load the probe file {file}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # so that what it defines can be pickled
        spec.loader.exec_module(module)
        _MODULES[file] = module
    return _MODULES[file]


_MODULES: dict[str, Any] = {}


class _Uncached(importlib.machinery.SourceFileLoader):
    """Compiles the file every time.

    Python compares bytecode with its source by size and whole seconds, which misses quick edits of
    a probe.
    """

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def _bounded(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - limit} characters left out ...]\n{text[-half:]}"
