"""``vllm-regress list``."""

from __future__ import annotations

from .context import OK, USAGE, Invocation, TextOrJson, print_columns, print_json, say


def list_(command: Invocation, format: TextOrJson = "text", boundaries: bool = False) -> int:
    """List the cases: id, family, affected versions, title.

    Invalid case files are named on standard error.

    Exit codes: 0 all case files are valid; 2 usage, or some case file is invalid (the others are
    listed).
    """
    cases = command.cases()
    if boundaries:
        from ..answers.audit.boundaries import boundaries as boundaries_of
        from ..answers.audit.boundaries import counts_of
        from ..answers.audit.verdict_table import read_table

        table = read_table(cases)
        ends = [end for case in cases for end in boundaries_of(case, table)]
        document = [{"case": end.case_id, **end.to_json()} for end in ends]
        titles = ("case", "end", "state", "reason")
        rows = [(end.case_id, f"{end.package} {end.bound}", end.state, end.reason) for end in ends]
    else:
        from ..cases.model import fields_of

        document = [fields_of(case) for case in cases]
        titles = ("id", "family", "affected", "title")
        rows = [(case.id, case.family, case.affected_text(), case.title) for case in cases]
    if format == "json":
        print_json(document)
    else:
        print_columns(titles, rows)
        if boundaries:
            say(counts_of(ends))
    return USAGE if command.loaded.problems else OK
