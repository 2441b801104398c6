"""Calling a probe's functions, and how an exception travels to the controller."""

import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from typing import Any, Callable, Dict, List, Optional

from . import deaths
from .protocol import Frame

Operation = Callable[..., Any]


def failure(error: BaseException) -> Frame:
    """The frame that reports an exception: class, message, chain (root first) and traceback, as the target words them.

    ``engine_died``: one of the chain is what vLLM calls the death of its engine. ``claim``: of an ``Unsupported``.
    """
    chain = _chain(error)
    return {
        "ok": False,
        "type": _name(error),
        "message": _bounded(str(error), 20000),
        "chain": [_bounded("{}: {}".format(_name(each).replace("builtins.", "", 1), each), 8000) for each in chain],
        "traceback": _bounded("".join(traceback.format_exception(type(error), error, error.__traceback__)), 60000),
        "engine_died": any(deaths.says_engine_died(each) for each in chain),
        "claim": getattr(error, "claim", {}),
    }


def _chain(error: BaseException) -> List[BaseException]:
    """The error and what it came from, as Python would print them: the root first, at most 10."""
    found: List[BaseException] = []
    at: Optional[BaseException] = error
    while at is not None and at not in found and len(found) < 10:
        found.append(at)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return found[::-1]


def _name(error: BaseException) -> str:
    return "{}.{}".format(type(error).__module__, type(error).__qualname__)


def load_function(file: str, name: str) -> Operation:
    """The plain function ``name`` of the probe file ``file``."""
    module = _MODULES.get(file)
    if module is None:
        name_of_module = "vllm_regress_probe_{}".format(len(_MODULES))
        spec = importlib.util.spec_from_file_location(name_of_module, file, loader=_Uncached(name_of_module, file))
        if spec is None or spec.loader is None:
            raise ImportError("cannot load the probe file {}".format(file))
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # so that what it defines can be pickled
        spec.loader.exec_module(module)
        _MODULES[file] = module
    function = getattr(module, name, None)
    if not inspect.isfunction(function) or name.startswith("_"):
        offered = sorted(n for n, f in vars(module).items() if inspect.isfunction(f) and not n.startswith("_"))
        raise LookupError(
            "{} has no probe function {!r}; it offers {}".format(file, name, ", ".join(offered) or "none")
        )
    return function


_MODULES: Dict[str, Any] = {}


class _Uncached(importlib.machinery.SourceFileLoader):
    """Compiles the file as it is now. Bytecode is told from its source by size and whole seconds: not by enough for a file that is being written."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def _bounded(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return "{}\n[... {} characters left out ...]\n{}".format(text[:half], len(text) - limit, text[-half:])
