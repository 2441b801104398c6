"""``vllm-regress list``, ``show`` and ``new``: cases as data."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..util.text import one_line
from .context import HELP, AsJson, invocation, print_columns, print_json, say, warn

if TYPE_CHECKING:
    from ..cases.model import Case

app = typer.Typer(context_settings=HELP)


@app.command("list")
def list_cases(context: typer.Context, as_json: AsJson = False) -> None:
    """List the cases: id, family, affected versions, title."""
    cases = invocation(context).cases()
    if as_json:
        print_json([_as_json(case) for case in cases])
        return
    print_columns(("id", "family", "affected", "title"), [(c.id, c.family, c.affected_text(), c.title) for c in cases])


@app.command()
def show(
    context: typer.Context,
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="The case's id.")],
    as_json: AsJson = False,
) -> None:
    """Show everything that is known about one case."""
    from ..cases import lint
    from ..cases.model import select

    cases = invocation(context).cases()
    (case,) = select(cases, [case_id])
    for line in lint.warnings(case, cases):
        warn(f"warning: {line}")
    if as_json:
        print_json(_as_json(case))
        return
    for name, value in _as_json(case).items():
        if value not in (None, "", [], {}, False):
            say(f"{name + ':':14}{_one_line(value)}")


@app.command()
def new(
    context: typer.Context,
    upstream: Annotated[str | None, typer.Argument(metavar="[URL|OWNER/NAME#N|N]", help="The upstream report.")] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="URL|OWNER/NAME#N|N", help="The same, as an option.")
    ] = None,
    finding: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A finding of `vllm-regress fuzz`; a report is not needed then.")
    ] = None,
    front: Annotated[
        str, typer.Option(help="What the test starts: offline, async or serve (an engine), probe or finding (none).")
    ] = "offline",
    title: Annotated[str | None, typer.Option(help="The failure in a few words.")] = None,
    family: Annotated[str, typer.Option(help="The kind of defect, for grouping.")] = "wrong-result",
    package: Annotated[
        str | None, typer.Option(help="The distribution that has the failure (default: the repository's name).")
    ] = None,
    affected: Annotated[
        str, typer.Option(metavar="SPECIFIER", help="Its affected versions, for example '>=0.7,<0.8.5'.")
    ] = ">=0",
    kind: Annotated[
        str,
        typer.Option(help="wrong-result, exception, hang, crash or engine-death: the test comes with its controls."),
    ] = "wrong-result",
    phase: Annotated[
        str,
        typer.Option(help="import, start, ready, request, stop or probe (default: where the test of this front asks)."),
    ] = "",
    pattern: Annotated[
        str, typer.Option(metavar="REGEX", help="What the failure's text looks like (default: what the test asserts).")
    ] = "",
    affected_env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Environment that shows it; repeatable.")
    ] = None,
    fixed_env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Environment that does not; repeatable.")
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="How the engine of the control leg differs (default: the test leaves its trigger out); repeatable.",
        ),
    ] = None,
    omits: Annotated[
        str, typer.Option(metavar="TEXT", help="Which single thing the control leg leaves out, in words.")
    ] = "",
) -> None:
    """Write the directory of a new case: case.toml, a test that runs, and a README."""
    from ..cases import lint
    from ..cases.model import find_cases
    from ..cases.scaffold import Draft, NotReported, Upstream, create
    from ..cases.templates import PLACEHOLDER, TEMPLATES

    if finding is None and (upstream is None) == (from_ is None):
        raise UsageError("new: give the upstream report once, as an address, owner/name#number or a number")
    if front not in TEMPLATES:
        raise UsageError(f"--front {front!r}: allowed are {', '.join(TEMPLATES)}")

    draft = Draft(
        title=title,
        family=family,
        package=package,
        affected=affected,
        kind=kind,
        phase=phase,
        pattern=pattern,
        affected_env=tuple(affected_env or ()),
        fixed_env=tuple(fixed_env or ()),
        control=dict(map(_control_field, control or [])),
        omits=omits,
        front=front,
    )
    report: Upstream | NotReported
    if finding is not None:
        from ..fuzz.artefact import load
        from ..fuzz.draft import TRACKERS, draft_of

        found = load(finding)
        draft = draft_of(found, draft)
        named = upstream or from_ or found.upstream
        report = Upstream.parse(named) if named else NotReported(Path(found.name).stem, TRACKERS[found.backend])
    else:
        report = Upstream.parse(upstream or from_ or "")
    case = create(invocation(context).cases_dir or Path("cases"), report, draft)
    for line in lint.warnings(case, find_cases(case.directory.parent)):
        warn(f"warning: {line}")
    for path in sorted(case.directory.iterdir()):
        say(str(path))
    if case.symptom.pattern == PLACEHOLDER:
        warn(f"Next: write what this failure prints, and nothing else does, as symptom.pattern in {case.path}")
    if not case.evidence.affected:
        warn(f"Next: name an environment that shows the failure under [evidence] in {case.path}")
    warn(f"Next: write the test, then prove the case: {invocation(context).command('validate', case.id)}")


def _control_field(text: str) -> tuple[str, str | int | bool]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"--control {text!r}: allowed is FIELD=VALUE, for example tokenizer_pool_size=0")
    if value in ("true", "false"):
        return name, value == "true"
    with contextlib.suppress(ValueError):
        return name, int(value)
    return name, value


def _as_json(case: Case) -> dict[str, Any]:
    return {
        "id": case.id,
        "title": case.title,
        "family": case.family,
        "affected": {each.package: each.specifier for each in case.affected},
        "first_fixed": case.first_fixed(),
        "since": case.since,
        "upstream": list(case.upstream),
        "fixed_by": list(case.fixed_by),
        "broken_by": list(case.broken_by),
        "devices": list(case.devices),
        "symptom": {
            "kinds": list(case.symptom.kinds),
            "phases": list(case.symptom.phases),
            "pattern": case.symptom.pattern,
            "where": {kind.value: list(case.symptom.parts_for(kind)) for kind in case.symptom.kinds},
        },
        "variants": {
            name: {
                "affected": False if each.never else {r.package: r.specifier for r in each.ranges},
                "reason": each.reason,
            }
            for name, each in case.variants.items()
        },
        "control": {
            name: value
            for name, value in (
                ("omits", case.control.omits),
                ("none", case.control.none),
                *case.control.changes.items(),
                ("probe", dict(case.control.probe)),
            )
            if value not in ("", {})
        },
        "evidence": {"affected": list(case.evidence.affected), "fixed": list(case.evidence.fixed)},
        "workaround": case.workaround,
        "racy": case.racy,
        "notes": case.notes,
        "path": str(case.path),
    }


def _one_line(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key} {_one_line(each)}".strip() for key, each in value.items() if each not in ("", []))
    if isinstance(value, list):
        return ", ".join(map(_one_line, value))
    return str(value).lower() if isinstance(value, bool) else one_line(str(value))
