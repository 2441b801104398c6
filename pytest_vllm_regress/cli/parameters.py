"""Make commands of functions: their options and arguments in the words of ``data/commands.toml``,
and what is done around every command.

The parameters of a function are those of its command; their names, types and defaults stand there.
Two types are not for the command line: ``Invocation``, which are the options of ``vllm-regress``
itself, and a frozen dataclass, whose fields are options that several commands share; its default is
an instance.

Where do I add an option? One of a single command: as a parameter of its function. One that several
commands share: as a field of such a dataclass (``cli/context.py``). One of every command: as a
parameter of ``front_door.root``. Its help stands in ``data/commands.toml``.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature, cleandoc, signature
from typing import Annotated, Any, get_origin, get_type_hints

import typer
import typer.core

from ..util.paths import DATA
from ..util.signals import interruptible
from .context import INTERRUPTED, OK, Invocation, warn


def as_command(
    function: Callable[..., int | None], name: str, *, resumes: bool
) -> Callable[..., None]:
    """Return a function for typer that calls ``function`` and ends with the exit code that it
    returns (None: 0).

    SIGTERM interrupts a command like Ctrl-C. ``resumes``: what it has done is kept.
    """
    kinds: dict[str, Any] = get_type_hints(function)
    kinds.pop("return", None)

    @functools.wraps(function)
    def run(context: typer.Context, **values: Any) -> None:
        for key, kind in kinds.items():
            if kind is Invocation:
                values[key] = context.obj
            elif isinstance(kind, type) and is_dataclass(kind):
                values[key] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        try:
            with interruptible():
                raise typer.Exit(function(**values) or OK)
        except KeyboardInterrupt:
            warn(f"interrupted{': repeat the command to resume' if resumes else ''}")
            raise typer.Exit(INTERRUPTED) from None

    # Typer breaks the lines of a paragraph where the source does.
    paragraphs = cleandoc(function.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return declared(run, name, function)


def declared(
    run: Callable[..., None], name: str, function: Callable[..., object]
) -> Callable[..., None]:
    """Give ``run`` the parameters of ``function`` as typer reads them."""
    kinds = get_type_hints(function, include_extras=True)
    options = [
        Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *(
            option
            for parameter in signature(function).parameters.values()
            for option in _options(name, parameter.replace(annotation=kinds[parameter.name]))
        ),
    ]
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _options(command: str, parameter: Parameter) -> Iterator[Parameter]:
    """Yield what a parameter of a function is on the command line."""
    kind = parameter.annotation
    if kind in (Invocation, typer.Context):
        return
    if get_origin(kind) is Annotated:
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY)
    elif not is_dataclass(kind):
        yield Parameter(
            parameter.name,
            Parameter.KEYWORD_ONLY,
            default=parameter.default,
            annotation=Annotated[kind, _described(command, parameter.name)],
        )
    else:
        for name, hint in get_type_hints(kind).items():
            default = getattr(parameter.default, name)
            option = Parameter(name, parameter.kind, default=default, annotation=hint)
            yield from _options(command, option)


def _described(command: str, parameter: str) -> Any:
    """Return the declaration for typer."""
    chosen: dict[str, Any] = {}
    for table in ("all", command.split(" ")[0], command):
        chosen |= words().get(table, {}).get(parameter, {})
    chosen["autocompletion"] = COMPLETIONS.get(chosen.pop("complete", ""))
    if chosen.pop("argument", False):
        return typer.Argument(**chosen)
    long = chosen.pop("option", f"--{parameter.replace('_', '-')}")
    return typer.Option(*filter(None, (long, chosen.pop("short", ""))), **chosen)


class Quick:
    """A command or group whose parameters keep the texts and defaults that need no conversion.

    Typer imports pydantic to convert each of them, which takes a fifth of a start.
    """

    def get_params(self, context: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]
        for parameter in parameters:
            if not isinstance(parameter.process_value, functools.partial):
                convert = parameter.process_value
                parameter.process_value = functools.partial(_value_of, parameter, convert)
        return parameters


class QuickCommand(Quick, typer.core.TyperCommand):
    """A command that starts quickly."""


class QuickGroup(Quick, typer.core.TyperGroup):
    """A group of commands that starts quickly."""


def _value_of(parameter: Any, convert: Callable[..., Any], context: Any, value: Any) -> Any:
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    is_default = isinstance(value, str | int) and value == parameter.default
    if (value is None and parameter.required) or not (
        value is None or kind in (str, list[str]) or is_default
    ):
        return convert(context, value)
    if parameter.multiple or parameter.nargs == -1:
        value = [*value] if value else ()
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


@functools.cache
def words() -> dict[str, Any]:
    """Return ``data/commands.toml``."""
    return tomllib.loads((DATA / "commands.toml").read_text(encoding="utf-8"))


def _case_ids(context: typer.Context, incomplete: str) -> list[str]:
    from ..cases.loading import default_cases_dir, is_case_id

    root = context.find_root().params.get("cases") or default_cases_dir()
    # The shell inserts what it is given. A folder may have any name, such as an option's.
    names = {path.parent.name for path in root.glob("*/case.toml")}
    return _beginning_with(incomplete, sorted(filter(is_case_id, names)))


def _environments(incomplete: str) -> list[str]:
    from ..environments.recipes import find_file, load

    return _beginning_with(incomplete, load(find_file()).recipes)


COMPLETIONS: dict[str, Callable[..., list[str]]] = {
    "cases": _case_ids,
    "environments": _environments,
}


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
