"""Functions that ``vllm-regress survey drift`` calls in a target: does this installation import, and does
its command print its help?"""

import importlib
import importlib.metadata
import io
import sys
from contextlib import redirect_stdout

SERVER = "vllm.entrypoints.openai.api_server"
"""Importing it imports what a server needs, and with it most dependencies."""


def import_server() -> str:
    """Import vLLM and its server. Return the version of vLLM."""
    importlib.import_module(SERVER)
    return importlib.metadata.version("vllm")


def serve_help() -> int:
    """Run ``vllm serve --help``. Return the number of characters that it printed.

    Raises ``RuntimeError`` if the command ends with another status than 0 or prints nothing.
    """
    dialect = importlib.import_module(
        "vllm_regress_target.dialect.commandline"
    )  # this file is loaded by its path
    command = dialect.console_script("vllm")
    if command is None:
        raise RuntimeError("the installation has no command vllm")
    out = io.StringIO()
    status = _run(command, ["vllm", "serve", "--help"], out)
    text = out.getvalue()
    if status not in (None, 0) or not text.strip():
        raise RuntimeError(f"vllm serve --help ended with {status!r} and printed {text[-500:]!r}")
    return len(text)


def _run(command: object, arguments: list[str], out: io.StringIO) -> object:
    before = sys.argv
    sys.argv = arguments
    try:
        with redirect_stdout(out):
            command()  # type: ignore[operator]
    except SystemExit as end:
        return end.code
    finally:
        sys.argv = before
    return 0
