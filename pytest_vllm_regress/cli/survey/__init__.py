"""``vllm-regress survey``: measure what releases of vLLM can do, survive, and need.

Each command keeps its results in the cache until everything is measured: an interrupted command is
repeated to resume it.
"""

from __future__ import annotations

import typer

from ..context import HELP
from . import conformance, drift, states, upstream

app = typer.Typer(
    context_settings=HELP,
    no_args_is_help=True,
    add_completion=False,
    help="Measure what releases of vLLM can do, survive and need.",
)
app.command(epilog=conformance.EPILOG)(conformance.conformance)
app.command(epilog=states.EPILOG)(states.states)
app.command(epilog=drift.EPILOG)(drift.drift)
app.command(epilog=upstream.EPILOG)(upstream.upstream)
