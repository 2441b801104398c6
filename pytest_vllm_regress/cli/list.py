"""``vllm-regress list``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from .context import OK, USAGE, TextOrJson, invocation, print_columns, print_json, say

if TYPE_CHECKING:
    from ..cases.model import Case

EPILOG = (
    "Exit codes: 0 all case files are valid; 2 usage, or some case file is invalid (the others are "
    "listed)."
)


def list_(
    context: typer.Context,
    format: TextOrJson = "text",
    show_boundaries: Annotated[
        bool,
        typer.Option(
            "--boundaries",
            help="List the ends of all affected ranges instead: observed or inferred, and why.",
        ),
    ] = False,
) -> None:
    """List the cases: id, family, affected versions, title.

    Invalid case files are named on standard error.
    """
    command = invocation(context)
    cases = command.cases()
    if show_boundaries:
        _print_boundaries(cases, as_json=format == "json")
    elif format == "json":
        from ..cases.model import fields_of

        print_json([fields_of(case) for case in cases])
    else:
        rows = [(case.id, case.family, case.affected_text(), case.title) for case in cases]
        print_columns(("id", "family", "affected", "title"), rows)
    raise typer.Exit(USAGE if command.loaded.problems else OK)


def _print_boundaries(cases: Sequence[Case], *, as_json: bool) -> None:
    from ..answers.audit.boundaries import boundaries
    from ..answers.audit.verdict_table import read_table

    table = read_table(cases)
    ends = [end for case in cases for end in boundaries(case, table)]
    if as_json:
        print_json([{"case": end.case_id, **end.to_json()} for end in ends])
        return
    rows = [(end.case_id, f"{end.package} {end.bound}", end.state, end.reason) for end in ends]
    print_columns(("case", "end", "state", "reason"), rows)
    say(f"{sum(end.observed for end in ends)} of {len(ends)} ends are observed")
