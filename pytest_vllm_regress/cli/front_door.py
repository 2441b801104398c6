"""The command ``vllm-regress``: its commands in groups, the options that all of them take, and how
errors become exit codes.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import itertools
import keyword
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
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
from .parameters import QuickCommand, QuickGroup, as_command, declared, words


@dataclass(frozen=True)
class CommandEntry:
    """A command in ``data/commands.toml``."""

    panel: str
    line: str
    answers: bool = False
    starts: bool = False
    passes_on: bool = False
    resumes: bool = False


COMMANDS = {
    name: CommandEntry(
        **{key: value for key, value in table.items() if not isinstance(value, dict)}
    )
    for name, table in words().items()
    if "panel" in table
}
"""The module of each command has its name."""
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors that mean that output cannot be written: a full disk, an exceeded quota or file size, a
closed terminal."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""Errors of a network file system without a service for locks."""
EPILOG = (
    "Exit codes, unless a command names its own: 0 all verdicts as expected; 1 some verdict is not expected, "
    "or nothing was decided; 2 usage or bad input; "
    "3 an environment could not be built; 4 internal error; 130 interrupted; "
    "141 the reader of standard output has ended (| head). "
    "Questions to start with: vllm-regress audit vllm==0.8.4; vllm-regress explain server.log."
)
_ANYWHERE = "Options of every command (--cases, --source, --yes, -v, ...): vllm-regress --help."


class LazyCommand(typer.core.TyperCommand):
    """Stands for a command in lists and completion. The module is imported when the command is
    used, so that help is fast and one command does not import what others need."""

    def __init__(self, name: str) -> None:
        entry = COMMANDS[name]
        super().__init__(name, help=entry.line, rich_help_panel=entry.panel)

    def load(self) -> Any:
        """Return the command itself: of ``COMMANDS`` in its module, or else of the function with
        its name."""
        assert self.name is not None
        entry, home = COMMANDS[self.name], module_of(self.name)
        module = importlib.import_module(f".{home}", __package__)
        group: dict[str, Any] = getattr(module, "COMMANDS", {})
        app = typer.Typer(
            context_settings=HELP,
            add_completion=False,
            cls=QuickGroup,
            no_args_is_help=bool(group),
            help=f"{entry.line}.",
        )
        functions = group or {"": getattr(module, f"{self.name}_", None) or getattr(module, home)}
        for name, function in functions.items():
            full = f"{self.name} {name}".strip()
            declare = app.command(name or self.name, cls=QuickCommand)
            declare(as_command(function, full, resumes=entry.resumes))
        command: Any = typer.main.get_command(app)
        command.name = self.name
        command.epilog = _ANYWHERE
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return self.load().make_context(info_name, args, parent=parent, **extra)


class FrontDoor(QuickGroup):
    """The commands of ``COMMANDS``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": {name: LazyCommand(name) for name in COMMANDS}})


def module_of(command: str) -> str:
    """Return the name of the module in this package that has a command."""
    return f"{command}_" if keyword.iskeyword(command) else command


app = typer.Typer(
    name="vllm-regress",
    help="Documented vLLM failures: which ones does an installation have, and which versions are affected?",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP,
    cls=FrontDoor,
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
    own_args, pytest_args = split_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        _refuse_empty(own_args)
        app(args=own_args, prog_name="vllm-regress", obj=(own_args, pytest_args))
    except SystemExit as exit_request:
        # typer and rich turn it into an exit with 1, which means something else.
        if isinstance(exit_request.__context__, BrokenPipeError):
            return BROKEN_PIPE
        code = exit_request.code
        return code if isinstance(code, int) else OK if code is None else USAGE
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
        if reason := _reason_outside(error):
            warn(f"vllm-regress: {reason}")
            return USAGE
        if error.filename is None and error.errno not in _NOT_WRITTEN:
            return _internal_error()
        # Writing to an open file gives an error without a name. Our own files are written by
        # `write_atomically`, which adds it.
        name = "standard output" if error.filename is None else os.fsdecode(error.filename)
        warn(f"vllm-regress: {name}: {error.strerror}")
        return USAGE
    except MemoryError:
        warn(
            "vllm-regress: this needs more memory than it may use: raise the limit (ulimit -v) or free some"
        )
        return USAGE
    except Exception:
        return _internal_error()
    return OK


def _reason_outside(error: OSError) -> str:
    """Return what around this program explains an error that names no file; empty if nothing does."""
    if isinstance(error, BlockingIOError) and error.filename is None:
        return (
            "no process could be started: the limit for processes of this user is reached. "
            "End some, or raise it (ulimit -u)"
        )
    if error.errno in _NO_LOCKS and error.filename is None:
        return (
            f"a file cannot be locked: {error.strerror}. Set VLLM_REGRESS_CACHE to a folder of this "
            "machine, whose file system has locks"
        )
    try:
        os.getcwd()
    except OSError as problem:
        return f"the working directory: {problem.strerror}. It was perhaps removed: go elsewhere"
    return ""


def _internal_error() -> int:
    warn(traceback.format_exc())
    warn(f"vllm-regress {__version__}: internal error; please report it with the traceback above")
    return INTERNAL


def _print_version(requested: bool) -> None:
    if requested:
        say(f"vllm-regress {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
    cases: Path | None = None,
    source: list[str] | None = None,
    wheel_index: str | None = None,
    yes: bool = False,
    verbose: int = 0,
    log_file: Path | None = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Take the options of all commands."""
    own_args, pytest_args = context.obj
    command = COMMANDS.get(context.invoked_subcommand or "")
    if (
        sys.platform != "linux"
        and command is not None
        and command.starts
        and not {*HELP["help_option_names"]} & {*own_args}
    ):
        elsewhere = ", ".join(name for name, entry in COMMANDS.items() if not entry.starts)
        raise UsageError(
            f"{context.invoked_subcommand}: Linux only, because it starts engines or builds "
            f"environments. On {sys.platform} these commands work: {elsewhere}"
        )
    if source or wheel_index:
        from ..environments.sources import set_clones, set_wheel_index

        if source:
            set_clones(source)
        if wheel_index:
            set_wheel_index(wheel_index)
    context.with_resource(logging_to(verbose, log_file, warn))
    LOGGER.info("vllm-regress %s: %s", __version__, shlex.join([*own_args, *pytest_args]))
    context.obj = Invocation(
        cases,
        pytest_args,
        answers=command is not None and command.answers,
        verbose=verbose > 0,
        yes=yes,
        sources=tuple(source or ()),
        wheel_index=wheel_index,
    )


app.callback()(declared(root, "root", root))


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return our arguments, with the options of ``root`` before the command wherever they stood,
    and those after ``--`` that are passed on."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    first, rest = _options_first(words[:at])
    head, tail = [*first, *rest], words[at:]
    # Only the first word is the command: an argument of `audit` may be the name of another one.
    if rest and rest[0] in COMMANDS and COMMANDS[rest[0]].passes_on:
        return head, tuple(tail[1:])
    return [*head, *tail], ()


def _options_first(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of ``root`` and the other words: nobody knows by heart which ones stand
    where."""
    valued, flags = ("--cases", "--source", "--wheel-index", "--log-file"), ("--yes", "--verbose")
    first: list[str] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        name, equals, _ = word.partition("=")
        if name in valued:
            first += [word] if equals else [word, *itertools.islice(left, 1)]
        else:
            (first if word in flags or re.fullmatch(r"-(v+|y)", word) else rest).append(word)
    return first, rest


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
