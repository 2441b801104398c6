"""``vllm-regress fuzz`` and ``replay``: search for failures that nobody has reported, and replay
findings."""

from __future__ import annotations

from typing import Any

import typer
import typer.core

from ..context import HELP, warn
from . import api, engines, lifecycle, options, parsers, replay, report, schemas

app = typer.Typer(context_settings=HELP, add_completion=False)


class Hunters(typer.core.TyperGroup):
    """The commands below ``fuzz``.

    Without the name of one, ``schemas`` is meant: the form before 0.2.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            warn(
                "vllm-regress fuzz ENV... is deprecated and will be removed in pytest-vllm-regress 0.2.0: use vllm-regress fuzz schemas ENV..."
            )
            args = ["schemas", *args]
        return super().parse_args(ctx, args)


hunters = typer.Typer(
    cls=Hunters,
    help="Search for failures that nobody has reported.\n\nEach finding becomes a file that `vllm-regress replay` replays.",
    context_settings=HELP,
    no_args_is_help=True,
    epilog=schemas.EPILOG,
)
app.add_typer(hunters, name="fuzz")
hunters.command(epilog=options.EPILOG)(api.api)
hunters.command(epilog=options.EPILOG)(engines.engines)
hunters.command(epilog=options.EPILOG)(lifecycle.lifecycle)
hunters.command(epilog=options.EPILOG)(parsers.parsers)
hunters.command(epilog=report.EPILOG)(report.report)
hunters.command(epilog=schemas.EPILOG)(schemas.schemas)
app.command(epilog=replay.EPILOG)(replay.replay)
