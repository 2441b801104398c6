"""Make commands of functions: their options and arguments in the words of ``data/options.toml``,
and what is done around every command.

The parameters of a function are those of its command; their names, types and defaults stand there.
Two types are not for the command line: ``Invocation``, which are the options of ``vllm-regress``
itself, and a frozen dataclass, whose fields are options that several commands share.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

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
    given = signature(function).parameters

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

    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    options = [
        option
        for key, kind in kinds.items()
        for option in _options(name, given[key].replace(annotation=kind))
    ]
    run.__signature__ = Signature([context, *options])  # type: ignore[attr-defined]  # for typer
    run.__annotations__ = {option.name: option.annotation for option in (context, *options)}
    return run


def _options(command: str, parameter: Parameter) -> Iterator[Parameter]:
    """Yield what a parameter of a function is on the command line."""
    kind = parameter.annotation
    if kind is Invocation:
        return
    if not is_dataclass(kind):
        yield Parameter(
            parameter.name,
            Parameter.KEYWORD_ONLY,
            default=parameter.default,
            annotation=Annotated[kind, _described(command, parameter.name)],
        )
        return
    hints = get_type_hints(kind)
    for field in fields(kind):
        default = getattr(parameter.default, field.name, field.default)
        option = Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if default is MISSING else default,
            annotation=hints[field.name],
        )
        yield from _options(command, option)


def _described(command: str, parameter: str) -> Any:
    """Return the declaration for typer."""
    tables = ("all", command.split(" ")[0], command)
    words = {
        key: value
        for table in tables
        for key, value in _words().get(table, {}).get(parameter, {}).items()
    }
    words["autocompletion"] = COMPLETIONS.get(words.pop("complete", ""))
    if words.pop("argument", False):
        return typer.Argument(**words)
    names = [words.pop("option", f"--{parameter.replace('_', '-')}")]
    if "short" in words:
        names.append(words.pop("short"))
    return typer.Option(*names, **words)


@functools.cache
def _words() -> dict[str, Any]:
    return tomllib.loads((DATA / "options.toml").read_text(encoding="utf-8"))


def _case_ids(context: typer.Context, incomplete: str) -> list[str]:
    from ..cases.loading import default_cases_dir

    root = context.find_root().params.get("cases") or default_cases_dir()
    return _beginning_with(
        incomplete, sorted(path.parent.name for path in root.glob("*/case.toml"))
    )


def _environments(incomplete: str) -> list[str]:
    from ..environments.recipes import find_file, load

    return _beginning_with(incomplete, load(find_file()).recipes)


COMPLETIONS: dict[str, Callable[..., list[str]]] = {
    "cases": _case_ids,
    "environments": _environments,
}


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
