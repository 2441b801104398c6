"""``vllm-regress fuzz report``: a finding as the text of upstream's bug-report form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..context import say

EPILOG = "Exit codes: 0 printed; 2 usage or bad input."


def report(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A finding of `vllm-regress fuzz api`.")
    ],
) -> None:
    """Print a finding of `fuzz api` as the text of vLLM's bug-report form."""
    from ...fuzz.api.finding import load
    from ...fuzz.api.report import bug_form

    say(bug_form(load(file)).rstrip())
