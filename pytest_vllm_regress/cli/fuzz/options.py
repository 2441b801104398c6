"""Options that the campaigns of ``vllm-regress fuzz`` share."""

from __future__ import annotations

from typing import Annotated

import typer

EPILOG = "Exit codes: 0 no problems; 1 findings; 2 usage or bad input; 3 an environment could not be built; 130 interrupted."
Environment = Annotated[
    str, typer.Argument(metavar="ENV", help="Environment with vLLM, for example vllm-0.33.0.")
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed draws the same questions.")]
Minutes = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        help="Budget: rounds go on until it is spent, over all resumptions (default: one round).",
    ),
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Maximum number of rounds.")]
OUT = typer.Option(
    metavar="DIR",
    help="Folder for the findings and the journal, by which the same command resumes.",
)
