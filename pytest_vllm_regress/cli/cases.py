"""``vllm-regress list``, ``show`` and ``new``: read and write case files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import Kind, UsageError
from ..util.text import one_line
from .context import (
    HELP,
    OK,
    USAGE,
    AsJson,
    invocation,
    print_columns,
    print_json,
    say,
    warn,
)

if TYPE_CHECKING:
    from ..cases.model import Case, Range

ERROR_STATUS = (
    "`post`, `post_all`, `get` and `client` return an error status, and what the test asserts about it is a wrong-result. Only the other "
    "methods of the server (chat, stream_chat, answers, embed, ...) raise it: an exception, or an engine-death if the engine is dead. For a test "
    "with `post` use --kind wrong-result"
)
app = typer.Typer(context_settings=HELP)


@app.command("list")
def list_cases(
    context: typer.Context,
    as_json: AsJson = False,
    show_boundaries: Annotated[
        bool,
        typer.Option(
            "--boundaries",
            help="List the ends of all affected ranges instead: observed or inferred, and why.",
        ),
    ] = False,
) -> None:
    """List the cases: id, family, affected versions, title. Invalid case files are named on
    standard error.

    Exit codes: 0 all case files are valid; 2 usage, or some case file is invalid (the others are
    listed).
    """
    command = invocation(context)
    cases = command.cases()
    if show_boundaries:
        _print_boundaries(cases, as_json)
    elif as_json:
        print_json([_as_json(case) for case in cases])
    else:
        rows = [(case.id, case.family, case.affected_text(), case.title) for case in cases]
        print_columns(("id", "family", "affected", "title"), rows)
    raise typer.Exit(USAGE if command.loaded.problems else OK)


def _print_boundaries(cases: Sequence[Case], as_json: bool) -> None:
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


@app.command()
def show(
    context: typer.Context,
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="The case's id.")],
    as_json: AsJson = False,
) -> None:
    """Show all fields of one case, and which ends of its affected range were observed."""
    from ..answers.audit.boundaries import boundaries
    from ..answers.audit.verdict_table import read_table

    command = invocation(context)
    (case,) = command.select([case_id])
    if (
        command.cases_dir is not None
    ):  # tests check the built-in cases, and the check takes a second
        from ..cases.proofs import lint

        for line in lint.lint_case(case, command.loaded.cases):
            warn(f"warning: {line}")
    ends = boundaries(case, read_table([case]))
    if as_json:
        print_json({**_as_json(case), "boundaries": [end.to_json() for end in ends]})
        return
    for name, value in _as_json(case).items():
        if name == "variants":
            _print_variants(value)
        elif value not in (None, "", [], {}, False):
            say(f"{name + ':':14}{_one_line(value)}")
    for end in ends:
        say(f"{'boundary:':14}{end}")


@app.command()
def new(
    context: typer.Context,
    upstream: Annotated[
        str | None, typer.Argument(metavar="[URL|OWNER/NAME#N|N]", help="The upstream report.")
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="URL|OWNER/NAME#N|N", help="The same as an option."),
    ] = None,
    finding: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A finding of `vllm-regress fuzz`; the report is then optional."
        ),
    ] = None,
    front: Annotated[
        str,
        typer.Option(
            help="What the test starts: an engine (offline, async, serve), or none (probe, finding). Default: offline; probe for a "
            "structured-output package or an environment without vLLM."
        ),
    ] = "",
    case_id: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="ID",
            help="Id of the case, for a second failure of one report (default: that of the report).",
        ),
    ] = "",
    title: Annotated[str | None, typer.Option(help="The failure in a few words.")] = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="Kind of defect, for grouping (default: --kind; dependency for a structured-output package)."
        ),
    ] = None,
    package: Annotated[
        str | None,
        typer.Option(help="Distribution that has the failure (default: the repository's name)."),
    ] = None,
    affected: Annotated[
        str,
        typer.Option(metavar="SPECIFIER", help="Affected versions, for example '>=0.7,<0.8.5'."),
    ] = ">=0",
    kind: Annotated[
        str,
        typer.Option(
            help="Kind of failure: wrong-result, exception, hang, crash or engine-death. Decides which controls the test has."
        ),
    ] = "wrong-result",
    phase: Annotated[
        str,
        typer.Option(
            help="Phase of the failure: import, start, ready, request, stop or probe (default: by --front). With --front serve, "
            "ready writes a test of a server that does not start, and stop one of signals and exit codes."
        ),
    ] = "",
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Pattern of the failure's text (default: that of the assertion in the test).",
        ),
    ] = None,
    affected_env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Environment with the failure; repeatable."),
    ] = None,
    fixed_env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Environment without the failure; repeatable."),
    ] = None,
    fixed_by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|OWNER/NAME#N|HASH|URL",
            help="Pull request or commit that fixed it (fixed-by); repeatable.",
        ),
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="Engine argument of the control leg (default: the test omits its trigger); repeatable.",
        ),
    ] = None,
    omits: Annotated[
        str, typer.Option(metavar="TEXT", help="What the control leg omits, in words.")
    ] = "",
) -> None:
    """Write the directory of a new case: case.toml, a test that runs, and a README."""
    from ..cases.loading import load_valid_cases
    from ..cases.proofs import lint
    from ..cases.scaffold import (
        PLACEHOLDER,
        TEMPLATES,
        Draft,
        GitHubReport,
        Unreported,
        create_case,
    )

    if finding is None and (upstream is None) == (from_ is None):
        raise UsageError(
            "new: give exactly one upstream report, as a URL, owner/name#number or a number"
        )
    if front and front not in TEMPLATES:
        raise UsageError(f"--front {front!r}: allowed are {', '.join(TEMPLATES)}")

    draft = Draft(
        id=case_id,
        title=title and title.strip(),
        family=family or "",
        package=package,
        affected=affected,
        kind=kind,
        phase=phase,
        pattern=pattern or "",
        affected_env=tuple(affected_env or ()),
        fixed_env=tuple(fixed_env or ()),
        control=dict(map(_control_field, control or [])),
        omits=omits,
        front=front,
        fixed_by=tuple(fixed_by or ()),
    )
    report: GitHubReport | Unreported
    if finding is not None:
        from ..fuzz.draft import draft_from_file

        draft, name, tracker, reported = draft_from_file(finding, draft)
        reference = upstream or from_ or reported
        report = (
            GitHubReport.parse(reference) if reference else Unreported(Path(name).stem, tracker)
        )
    else:
        report = GitHubReport.parse(upstream or from_ or "")
    case = create_case(invocation(context).cases_dir or Path("cases"), report, draft)
    for line in lint.lint_case(case, load_valid_cases(case.directory.parent).cases):
        warn(f"warning: {line}")
    if front == "serve" and Kind.EXCEPTION in case.symptom.kinds:
        warn(f"Note: {ERROR_STATUS}")
    for path in sorted(case.directory.iterdir()):
        say(str(path))
    if case.symptom.pattern == PLACEHOLDER:
        warn(f"Next: set symptom.pattern in {case.path} to a text that only this failure prints")
    if not case.evidence.affected:
        warn(f"Next: name an environment with the failure under [evidence] in {case.path}")
    warn(
        f"Next: write the test, then prove the case: {invocation(context).command('validate', case.id)}"
    )


def _control_field(text: str) -> tuple[str, str | int | bool]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(
            f"--control {text!r}: allowed is FIELD=VALUE, for example tokenizer_pool_size=0"
        )
    if value in ("true", "false"):
        return name, value == "true"
    with contextlib.suppress(ValueError):
        return name, int(value)
    return name, value


def _as_json(case: Case) -> dict[str, Any]:
    symptom, control = case.symptom, case.control
    return {
        "id": case.id,
        "title": case.title,
        "family": case.family,
        "affected": _ranges_to_json(case.affected),
        "first_fixed": case.first_fixed(),
        "since": case.since,
        "upstream": list(case.upstream),
        "fixed_by": list(case.fixed_by),
        "broken_by": list(case.broken_by),
        "devices": list(case.devices),
        "symptom": {
            "kinds": list(symptom.kinds),
            "phases": list(symptom.phases),
            "pattern": symptom.pattern,
            "where": {kind.value: list(symptom.parts_for(kind)) for kind in symptom.kinds},
        },
        "variants": {
            name: {
                "affected": False if variant.never else _ranges_to_json(variant.ranges),
                "reason": variant.reason,
            }
            for name, variant in case.variants.items()
        },
        "control": {
            name: value
            for name, value in (
                ("omits", control.omits),
                ("none", control.none),
                *control.changes.items(),
                ("probe", dict(control.probe)),
            )
            if value not in ("", {})
        },
        "evidence": {"affected": list(case.evidence.affected), "fixed": list(case.evidence.fixed)},
        "workaround": case.workaround,
        "racy": case.racy,
        "notes": case.notes,
        "path": str(case.path),
    }


def _print_variants(variants: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one variant per line, since a reason may contain any separator."""
    for name, variant in variants.items():
        affected = (
            f"affected {_one_line(variant['affected'])}"
            if variant["affected"]
            else "never affected"
        )
        reason = one_line(variant["reason"])
        say(f"{'variant:':14}{name}: {affected}{reason and f' ({reason})'}")


def _ranges_to_json(ranges: Iterable[Range]) -> dict[str, str]:
    return {affected.package: affected.specifier for affected in ranges}


def _one_line(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(
            f"{key} {_one_line(item)}".strip()
            for key, item in value.items()
            if item not in ("", [])
        )
    if isinstance(value, list):
        return ", ".join(map(_one_line, value))
    return str(value).lower() if isinstance(value, bool) else one_line(str(value))
