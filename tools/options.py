"""The options of all commands and of the plugin, as ``tools.reference`` lists and ``tools.size``
counts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from pytest_vllm_regress import cli
from pytest_vllm_regress.plugin import options as plugin

MOST_OPTIONS = 200
"""Options of all commands and the plugin together, each counted once in each command that has it.
People look them up in ``--help``, so each one makes all others harder to find: before a new one,
look for one that has the meaning, or that can go."""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield all commands with their names, ``env list`` for one of a group; the program itself
    without a name."""
    program: Any = typer.main.get_command(cli.app)
    yield "", program
    for name, stand_in in program.commands.items():
        command = stand_in.load()
        yield name, command
        yield from ((f"{name} {below}", c) for below, c in getattr(command, "commands", {}).items())


def options_of(command: Any) -> Iterator[tuple[str, str]]:
    """Yield the options that are ours, with their help: not ``--help`` and the shell completion of
    typer."""
    for option in command.params:
        name = max(option.opts, key=len)
        if option.param_type_name == "option" and not name.endswith("-completion"):
            yield name, option.help


def counts() -> dict[str, int]:
    """Return how many options each command has (``""``: the program itself), and ``pytest``: those
    of the plugin that its help shows."""
    of_commands = {name: len([*options_of(command)]) for name, command in commands()}
    return {**of_commands, "pytest": len(plugin.OPTIONS)}
