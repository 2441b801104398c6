"""The command ``vllm-regress``. Commands here parse and delegate; what they need is imported when they run."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from .._version import __version__
from ..errors import BuildError, RegressError, UsageError
from ..util.masking import mask
from .context import HELP, INTERNAL, INTERRUPTED, OK, UNBUILT, USAGE, Invocation, say, warn

MODULES = {
    "audit": "audit",
    "bisect": "bisect",
    "conformance": "conformance",
    "doctor": "doctor",
    "env": "environments",
    "fuzz": "fuzz",
    "judge": "judge",
    "list": "cases",
    "matrix": "matrix",
    "new": "cases",
    "replay": "fuzz",
    "report": "report",
    "run": "run",
    "show": "cases",
    "try": "try_patch",
    "validate": "validate",
}
"""The module of each command: its typer application ``app`` is the command, or has it among others."""
RUNNING_PYTEST = frozenset({"bisect", "conformance", "matrix", "run", "try", "validate"})
"""Commands whose arguments after ``--`` are pytest's."""
EPILOG = (
    "Exit codes: 0 all verdicts as expected; 1 some verdict is not expected; 2 usage or bad input; "
    "3 an environment could not be built; 4 internal error; 130 interrupted."
)


class LazyCommands(typer.core.TyperGroup):
    """The commands of ``MODULES``; a module is imported when its command is asked for."""

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
    help="Documented vLLM failures: which ones does an installation have, and since when, until when?",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP,
    cls=LazyCommands,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code (see ``EPILOG``)."""
    ours, pytest_args = _split(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=ours, prog_name="vllm-regress", obj=pytest_args)
    except SystemExit as ended:
        return _status(ended.code)
    except KeyboardInterrupt:
        warn("interrupted")
        return INTERRUPTED
    except RegressError as error:
        warn(f"vllm-regress: {mask(str(error))}")
        return UNBUILT if isinstance(error, BuildError) else USAGE if isinstance(error, UsageError) else INTERNAL
    except OSError as error:  # a place that is full, gone, or not ours: no defect of the command
        if error.filename is None:
            return _internal_error()
        warn(f"vllm-regress: {mask(f'{os.fsdecode(error.filename)}: {error.strerror}')}")
        return USAGE
    except Exception:
        return _internal_error()
        return INTERNAL
    return OK


def _internal_error() -> int:
    warn(mask(traceback.format_exc()))
    warn(f"vllm-regress {__version__}: internal error; please report it with the lines above")
    return INTERNAL


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"vllm-regress {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    cases: Annotated[
        Path | None,
        typer.Option("--cases", metavar="DIR", help="Directory of cases (default: ./cases, else the built-in ones)."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    context.obj = Invocation(cases, tuple(context.obj or ()))


def _split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Ours and pytest's: what stands before and after the first ``--``, in commands that run pytest."""
    given = list(arguments)
    at = given.index("--") if "--" in given else len(given)
    if RUNNING_PYTEST.isdisjoint(given[:at]):
        return given, ()
    return given[:at], tuple(given[at + 1 :])


def _status(code: object) -> int:
    return code if isinstance(code, int) else OK if code is None else USAGE


if __name__ == "__main__":
    sys.exit(main())
