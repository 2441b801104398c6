"""Calling a probe's functions, and how an exception travels to the controller."""

import importlib.util
import inspect
import sys
import traceback
from typing import Any, Callable, Dict

from .protocol import Frame

Operation = Callable[..., Any]


def failure(error: BaseException) -> Frame:
    """The frame that reports an exception: class name, message and traceback, as the target words them."""
    return {
        "ok": False,
        "type": "{}.{}".format(type(error).__module__, type(error).__qualname__),
        "message": _bounded(str(error), 20000),
        "traceback": _bounded("".join(traceback.format_exception(type(error), error, error.__traceback__)), 60000),
    }


def load_function(file: str, name: str) -> Operation:
    """The plain function ``name`` of the probe file ``file``."""
    module = _MODULES.get(file)
    if module is None:
        spec = importlib.util.spec_from_file_location("vllm_regress_probe_{}".format(len(_MODULES)), file)
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


def _bounded(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return "{}\n[... {} characters left out ...]\n{}".format(text[:half], len(text) - limit, text[-half:])
