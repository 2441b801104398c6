"""The command ``vllm-regress``.

Command modules parse, delegate and print; each is imported when its command runs.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
import typer.core
import typer.main

from .._version import __version__
from ..errors import BuildError, RegressError, UsageError
from ..util.logs import LOGGER, logging_to
from .context import (
    BROKEN_PIPE,
    HELP,
    INTERNAL,
    INTERRUPTED,
    OK,
    UNBUILT,
    USAGE,
    Invocation,
    say,
    warn,
)

MODULES = {
    "ask": "run",
    "audit": "audit",
    "bisect": "bisect",
    "compare": "report",
    "doctor": "doctor",
    "env": "environments",
    "explain": "explain",
    "export": "export",
    "fuzz": "fuzz",
    "judge": "report",
    "list": "cases",
    "matrix": "matrix",
    "new": "cases",
    "report": "report",
    "run": "run",
    "show": "cases",
    "site": "report",
    "survey": "survey",
    "try": "changes",
    "uses": "audit",
    "validate": "validate",
    "watch": "changes",
}
"""The module that defines each command in its typer application ``app``."""
PASSING_ON = frozenset({"ask", "bisect", "matrix", "run", "survey", "try", "validate", "watch"})
"""Commands that pass arguments after ``--`` on: to pytest; ``ask`` runs them as a command."""
LINUX_ONLY = PASSING_ON | {"doctor", "env", "fuzz"}
"""Commands that start processes in target environments.

The others only read files and work everywhere.
"""
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors that mean that output cannot be written: a full disk, an exceeded quota or file size, a
closed terminal."""
EPILOG = (
    "Exit codes: 0 all verdicts as expected; 1 some verdict is not expected; 2 usage or bad input; "
    "3 an environment could not be built; 4 internal error; 130 interrupted; "
    "141 the reader of standard output has ended (| head). "
    "Global options stand before the command: vllm-regress -v run."
)


class LazyCommands(typer.core.TyperGroup):
    """The commands of ``MODULES``. A module is imported when its command is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted({*super().list_commands(ctx), *MODULES})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in MODULES:
            module = importlib.import_module(f".{MODULES[cmd_name]}", __name__)
            command: Any = typer.main.get_command(module.app)
            command = getattr(command, "commands", {}).get(cmd_name, command)
            command.name = cmd_name
            self.add_command(command)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    name="vllm-regress",
    help="Documented vLLM failures: which ones does an installation have, and which versions are affected?",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP,
    cls=LazyCommands,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (see ``EPILOG``)."""
    _prepare_streams()
    if sys.stdout is None:
        warn("vllm-regress: standard output is closed: redirect it to a file, or to /dev/null")
        return USAGE
    stdout = sys.stdout  # a broken pipe makes typer replace it
    status = _run(arguments)
    _flush(sys.stderr)
    error = _flush(stdout)
    if error is None or status == BROKEN_PIPE:
        return status
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    warn(f"vllm-regress: standard output: {error.strerror}")
    return USAGE


def _prepare_streams() -> None:
    """Let standard output and standard error escape characters that their encoding does not have."""
    if sys.stderr is None:  # closed; ``print`` would use standard output instead
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a test may use another kind
            stream.reconfigure(errors="backslashreplace")


def _flush(stream: TextIO) -> OSError | None:
    """Flush a stream and return the error if that fails.

    What is left in it is dropped then, because Python would try again at its end.
    """
    try:
        stream.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def _run(arguments: Sequence[str] | None) -> int:
    own_args, pytest_args = _split(sys.argv[1:] if arguments is None else arguments)
    try:
        _refuse_empty(own_args)
        app(args=own_args, prog_name="vllm-regress", obj=(own_args, pytest_args))
    except SystemExit as exit_request:
        # typer and rich turn it into an exit with 1, which means something else.
        return (
            BROKEN_PIPE
            if isinstance(exit_request.__context__, BrokenPipeError)
            else _status(exit_request.code)
        )
    except KeyboardInterrupt:
        warn("interrupted")
        return INTERRUPTED
    except RegressError as error:
        warn(f"vllm-regress: {error}")
        return (
            UNBUILT
            if isinstance(error, BuildError)
            else USAGE
            if isinstance(error, UsageError)
            else INTERNAL
        )
    except OSError as error:  # a full disk, a missing or protected file: no defect of this program
        if error.filename is None and error.errno not in _NOT_WRITTEN:
            return _internal_error()
        # Writing to an open file gives an error without a name. Our own files are written by
        # `write_atomically`, which adds it.
        name = "standard output" if error.filename is None else os.fsdecode(error.filename)
        warn(f"vllm-regress: {name}: {error.strerror}")
        return USAGE
    except Exception:
        return _internal_error()
    return OK


def _internal_error() -> int:
    warn(traceback.format_exc())
    warn(f"vllm-regress {__version__}: internal error; please report it with the traceback above")
    return INTERNAL


def _print_version(requested: bool) -> None:
    if requested:
        say(f"vllm-regress {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    cases: Annotated[
        Path | None,
        typer.Option(
            "--cases",
            metavar="DIR",
            help="Directory of cases (default: ./cases, else the built-in cases).",
        ),
    ] = None,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            show_default=False,
            metavar="",
            help="Log to standard error what is started, where and with which arguments, and show pytest's output; "
            "-vv also waits and deadlines.",
        ),
    ] = 0,
    log_file: Annotated[
        Path | None,
        typer.Option(
            "--log-file", metavar="FILE", help="Append the log of -vv to FILE, whatever is shown."
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    own_args, pytest_args = context.obj
    command = context.invoked_subcommand
    if (
        sys.platform != "linux"
        and command in LINUX_ONLY
        and not {*HELP["help_option_names"]} & {*own_args}
    ):
        raise UsageError(
            f"{command}: Linux only, because it starts engines or builds environments. On {sys.platform} these commands work: "
            f"{', '.join(name for name in MODULES if name not in LINUX_ONLY)}"
        )
    context.with_resource(logging_to(verbose, log_file, warn))
    LOGGER.info("vllm-regress %s: %s", __version__, shlex.join([*own_args, *pytest_args]))
    context.obj = Invocation(cases, pytest_args, verbose > 0)


def _split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split at the first ``--`` into our arguments and those that are passed on."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    if PASSING_ON.isdisjoint(words[:at]):
        return words, ()
    return words[:at], tuple(words[at + 1 :])


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Raise ``UsageError`` for an empty argument: no option accepts one, and an empty path would
    mean the working directory."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        option, equals, value = (
            word.partition("=") if word.startswith("--") else (before, "=", word)
        )
        if equals and not value.strip():
            which = f"the argument after {option}" if option.startswith("-") else "an argument"
            raise UsageError(
                f"{which} is empty, perhaps because a variable is not set: give it, or leave it out"
            )


def _status(code: object) -> int:
    return code if isinstance(code, int) else OK if code is None else USAGE


if __name__ == "__main__":
    sys.exit(main())
