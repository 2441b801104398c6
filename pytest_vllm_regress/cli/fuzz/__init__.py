"""``vllm-regress fuzz``: search for failures that nobody has reported, and replay findings."""

from __future__ import annotations

import typer

from ..context import HELP
from . import commands, replay

app = typer.Typer(
    help="Search for failures that nobody has reported.",
    context_settings=HELP,
    add_completion=False,
    no_args_is_help=True,
)
for hunter in (
    commands.schemas,
    commands.parsers,
    commands.api,
    commands.engines,
    commands.lifecycle,
):
    app.command(epilog=commands.EPILOG)(hunter)
app.command(epilog=replay.EPILOG)(replay.replay)
app.command(epilog=replay.REPORT_EPILOG)(replay.report)
