"""The generated parts of docs/reference, from the code."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest_vllm_regress
from pytest_vllm_regress import cli, plugin
from pytest_vllm_regress.cases.loading import CaseFile
from pytest_vllm_regress.cases.results import ResultFile
from pytest_vllm_regress.engines.probe import BUILT_IN, built_in_sources
from pytest_vllm_regress.plugin import fixtures, options
from pytest_vllm_regress.util.codec import json_schema
from tools.options import commands, options_of

WORDS = {
    "--limit": "a limit by its name, `NAME=VALUE`: repeatable. Which names there are and what they mean, the command says",
    "--set": "a field by its name, `FIELD=VALUE`: repeatable",
    "--all": "everything that there is to name",
    "--commits": "search commits, in the clone of `--source`",
    "--disk": "most disk space for downloads and environments",
    "--env": "an environment: the name of one, or the path of an interpreter. Repeatable where "
    "several make sense. Where commits or releases of another package are installed in turn, the "
    "one that they are laid over",
    "--examples": "how much is drawn in each round",
    "--ignore": "what does not count: by its id or name",
    "--jobs": "how many run at the same time",
    "--only": "only this part of the work",
    "--serve": "a deployment, as a command line or a file, by which the answer is narrowed. It is read, not run",
    "--out": "where the main output goes. Where a command writes several formats, the ending "
    "decides which one, and the option is repeatable: `.json` results, `.html` a page, `.md` "
    "Markdown, `.xml` JUnit, `.diff` edits. A folder for commands that write folders",
    "--base": "what to compare with",
    "--releases": "releases of vLLM on the index, as a specifier: `'>=0.8,<0.12'`",
    "--write": "apply edits to the files of the project, and add verdicts to its tables",
}
"""The one meaning of each option whose help differs from command to command, because it says what
the command does with it. All other names have one help text."""
HARNESS = ("lend", "route_through", "wait_ready", "close", "parts")
"""Methods of public classes that the fixtures call, not tests."""
HELPERS = ("unpack_bitmask",)
"""Functions in modules of built-in probes that are no probes: only the backends call them."""
JSON_TYPES = {
    "str",
    "int",
    "float",
    "bool",
    "Any",
    "Dict",
    "Json",
    "List",
    "Optional",
    "Sequence",
    "Union",
}


def option_rows() -> Iterator[str]:
    yield "| option | meaning |"
    yield "| --- | --- |"
    for option in options.OPTIONS:
        values = (
            ""
            if option.flag
            else "=" + ("|".join(option.choices) if option.choices else str(option.metavar))
        )
        yield f"| `{option.flag_name}{_cell(values)}` | {_cell(option.help)} |"


def marker_rows() -> Iterator[str]:
    for line in plugin.MARKERS:
        head, _, meaning = line.partition("): ")
        yield f"- `{head})`: {meaning}."


def fixture_rows() -> Iterator[str]:
    for name, value in vars(fixtures).items():
        wrapped = getattr(value, "__wrapped__", None) or getattr(value, "__pytest_wrapped__", None)
        function = getattr(wrapped, "obj", wrapped) or getattr(value, "_fixture_function", None)
        if type(value).__name__ == "FixtureFunctionDefinition" and function is not None:
            yield f"- `{name}`: {' '.join((inspect.getdoc(function) or '').split())}"


def schema_rows(kind: type) -> Iterator[str]:
    document = json_schema(kind)
    yield "| key | meaning |"
    yield "| --- | --- |"
    yield from _keys("", _resolved(document, document), document)


def _keys(prefix: str, schema: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    for name, property in schema.get("properties", {}).items():
        if meaning := property.get("description", ""):
            yield f"| `{prefix}{name}` | {_cell(meaning)} |"
        yield from _keys(
            f"{prefix}{name}[].", _resolved(property.get("items", {}), document), document
        )
        for form in property.get("anyOf", [property]):
            yield from _keys(f"{prefix}{name}.", _resolved(form, document), document)


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Return the schema, or the one that it refers to."""
    resolved: dict[str, Any] = (
        document["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    )
    return resolved


def command_rows() -> Iterator[str]:
    yield "| command | what it does |"
    yield "| --- | --- |"
    for name in cli.COMMANDS:
        yield f"| `{name}` | {_cell(cli.COMMANDS[name].line)} |"


def exit_code_rows() -> Iterator[str]:
    """Yield the commands with exit codes of their own."""
    yield "| command | exit codes |"
    yield "| --- | --- |"
    by_codes: dict[str, list[str]] = {}
    for name, command in commands():
        text = " ".join((command.help or "").split("\f")[0].split())
        found = re.search(r"Exit codes: (.*?)\.(?:$|\s)", f"{command.epilog or ''} {text}")
        if name and found:
            by_codes.setdefault(found.group(1), []).append(f"`{name}`")
    for codes, names in by_codes.items():
        yield f"| {', '.join(names)} | {_cell(codes)} |"


def word_rows() -> Iterator[str]:
    yield "| option | meaning | commands |"
    yield "| --- | --- | --- |"
    meanings: dict[str, str] = dict(WORDS)
    used: dict[str, list[str]] = {}
    for command, object in commands():
        for option, text in options_of(object):
            meanings.setdefault(option, text)
            used.setdefault(option, []).append(command or "all")
    for option in sorted(used, key=lambda name: name.lstrip("-")):
        meaning = meanings[option].rstrip(".")
        yield f"| `{option}` | {_cell(meaning)} | {', '.join(used[option])} |"


def api_rows() -> Iterator[str]:
    yield "| name | what it is |"
    yield "| --- | --- |"
    for name in pytest_vllm_regress.__all__:
        if name != "__version__":
            yield f"| `{name}` | {_cell(_meaning(name))} |"


def method_rows(*classes: str) -> Iterator[str]:
    """Yield the public methods and properties of classes of the API with those they inherit, except
    those that only the harness calls."""
    listed: dict[Any, str] = {}
    for name in classes:
        value = getattr(pytest_vllm_regress, name)
        members = {
            key: member
            for base in reversed(value.__mro__[:-1])
            for key, member in vars(base).items()
        }
        rows, shared = [], []
        for key, member in sorted(members.items()):
            function = (
                member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            )
            if (
                not inspect.isfunction(function)
                or key in HARNESS
                or (key != "__call__" and key.startswith("_"))
            ):
                continue
            if function in listed:
                shared.append(f"`{key}`")
                continue
            listed[function] = name
            call = key if isinstance(member, property) else _signature(function)
            prefix = "" if function is member or isinstance(member, property) else f"{name}."
            rows.append(f"| `{prefix}{_cell(call)}` | {_cell(_description(function))} |")
        yield from (f"**`{name}`**", "", "| method | what it does |", "| --- | --- |", *rows, "")
        if shared:
            yield from (f"And as above: {', '.join(shared)}.", "")


def probe_rows() -> Iterator[str]:
    """Yield the functions of the built-in probe modules that take and return JSON values."""
    yield "| probe | what it does |"
    yield "| --- | --- |"
    for module in BUILT_IN:
        source = next(
            file for file in built_in_sources(module) if file.stem in (module, "__init__")
        )
        for node in ast.parse(source.read_text()).body:
            if (
                not isinstance(node, ast.FunctionDef)
                or node.name.startswith("_")
                or node.name in HELPERS
            ):
                continue
            if _annotations(node) <= JSON_TYPES:
                returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
                call = f"{module}:{node.name}({ast.unparse(node.args)}){returns}"
                yield f"| `{_cell(call)}` | {_cell(' '.join((ast.get_docstring(node) or '').split()))} |"


def _annotations(function: ast.FunctionDef) -> set[str]:
    """Return the names in the annotations of a function's arguments and result."""
    annotations = [function.returns, *(argument.annotation for argument in function.args.args)]
    return {
        name.id
        for node in annotations
        if node is not None
        for name in ast.walk(node)
        if isinstance(name, ast.Name)
    }


def _signature(function: Callable[..., Any]) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for arguments in (node.args.posonlyargs, node.args.args):
        if arguments and arguments[0].arg in ("self", "cls"):
            del arguments[0]
            break
    name = "vllm_probe" if node.name == "__call__" else node.name
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    # Without "self" nothing may be left before the slash.
    return f"{name}({ast.unparse(node.args).removeprefix('/, ')}){returns}"


def _description(function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function)
    assert text, f"{function.__qualname__} has no docstring"
    return _beginning(text)


def _beginning(text: str) -> str:
    """Return the first line of a docstring and the paragraph after it, unless that is a list."""
    first, *more = text.split("\n\n")
    second = more[0] if more and not (more[0].startswith("Args:") or more[0].endswith(":")) else ""
    return " ".join(f"{first} {second}".split())


def _meaning(name: str) -> str:
    """Return the first paragraph of a docstring; for a value, of the string that follows it in its
    module."""
    value = getattr(pytest_vllm_regress, name)
    text = (
        inspect.getdoc(value)
        if inspect.isclass(value) or inspect.isroutine(value)
        else _text_after(name)
    )
    return _beginning(text or "")


def _text_after(name: str) -> str:
    home = Path(pytest_vllm_regress.__file__).parent.joinpath(
        *pytest_vllm_regress._MODULE_OF[name].split(".")
    )
    for file in sorted(home.glob("*.py")) if home.is_dir() else [home.with_suffix(".py")]:
        body = ast.parse(file.read_text()).body
        for line, after in itertools.pairwise(body):
            targets = (
                line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
            )
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                assert isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant), (
                    f"{name} has no docstring"
                )
                return str(after.value.value)
    raise SystemExit(f"{name}: not found")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PARTS: dict[str, dict[str, Callable[[], Iterator[str]]]] = {
    "options-of-pytest": {"options": option_rows},
    "fixtures-and-markers": {"markers": marker_rows, "fixtures": fixture_rows},
    "python-names": {
        "api": api_rows,
        "methods": lambda: method_rows("Engine", "AsyncEngine", "Server", "Probe", "Script"),
        "probes": probe_rows,
    },
    "commands": {"commands": command_rows},
    "exit-codes": {"exit-codes": exit_code_rows},
    "file-formats": {
        "case": lambda: schema_rows(CaseFile),
        "result": lambda: schema_rows(ResultFile),
    },
    "options-of-commands": {"words": word_rows},
}
"""The generated parts of each page."""
