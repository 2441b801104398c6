"""``vllm-regress audit``: the documented failures that a combination of versions has, known without running anything."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .context import HELP, OK, UNEXPECTED, AsJson, invocation, print_json, say, warn

if TYPE_CHECKING:
    from ..audit.matching import Finding
    from ..audit.preflight import Concern
    from ..audit.releases import Better
    from ..audit.target import Audit

SCHEMA_VERSION = 1
EPILOG = "Exit codes: 0 nothing found; 1 something found; 2 usage or bad input; 4 internal error."
app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(epilog=EPILOG)
def audit(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR|LOCK|LIST|SBOM|-]...",
            help="Environments' directories, lock files, lists of packages, SBOMs: read, not run (default: the running interpreter).",
        ),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option("--python", metavar="PATH", help="An interpreter, which is started to ask where it looks."),
    ] = None,
    vllm: Annotated[
        list[str] | None,
        typer.Option(
            "--vllm",
            metavar="VERSION",
            help="That release of vLLM, with its dependencies where a lock tells them; repeatable.",
        ),
    ] = None,
    releases: Annotated[
        bool, typer.Option("--releases", help="Instead: all releases that have a lock, one line each.")
    ] = False,
    preflight: Annotated[bool, typer.Option("--preflight", help="Look at the environment itself too.")] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="A case or a preflight check that does not count; repeatable."),
    ] = None,
    as_json: AsJson = False,
    as_sarif: Annotated[bool, typer.Option("--sarif", help="Print SARIF 2.1.0.")] = False,
) -> None:
    """Which documented failures does this combination of versions have? Reads metadata and lists; imports and runs nothing of them."""
    from ..audit import target as audit_target
    from ..audit.checks import CHECKS
    from ..audit.preflight import look_around
    from ..audit.releases import overview, release, table
    from ..environments.recipes import find_file, load

    if releases and (targets or vllm or python or preflight or ignore or as_sarif):
        raise UsageError("--releases looks at all releases: of the other options it takes --json alone")
    if as_json and as_sarif:
        raise UsageError("--json and --sarif contradict each other: give one of them")
    cases = invocation(context).cases()
    if releases:
        found = overview(cases, load(find_file()).locks)
        if as_json:
            print_json({"schema": SCHEMA_VERSION, "releases": [each.to_json() for each in found]})
        else:
            say(table(found))
        raise typer.Exit(OK)
    ignored = set(ignore or ())
    audit_target.check_ignored(ignored, [*(case.id for case in cases), *CHECKS])
    asked = [python or Path(sys.executable)] if python or not (targets or vllm) else []
    inventories = [
        *map(audit_target.read_target, targets or ()),
        *(release(each, load(find_file()).locks) for each in vllm or ()),
        *map(audit_target.started, asked),
    ]
    around = look_around() if preflight else None
    audits = [audit_target.audit(each, cases, around, ignored) for each in inventories]
    if as_sarif:
        from ..audit.sarif import to_sarif

        print_json(to_sarif(audits))
    elif as_json:
        print_json({"schema": SCHEMA_VERSION, "targets": [each.to_json() for each in audits]})
    else:
        for each in audits:
            _print(each)
    for note in [note for each in audits for note in each.notes]:
        warn(f"note: {note}")
    raise typer.Exit(OK if all(each.clean for each in audits) else UNEXPECTED)


def _print(found: Audit) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    say(f"{found.source}: {versions or 'nothing that a case is about'}")
    ignored = f"; ignored: {', '.join(found.ignored)}" if found.ignored else ""
    count = len(found.findings)
    say(f"{count or 'no'} documented failure{'' if count == 1 else 's'}{ignored}")
    if found.better is not None:
        _field("what to do", _advice(found.better))
    for finding in found.findings:
        _print_finding(finding)
    for concern in found.concerns:
        _print_concern(concern)


def _advice(better: Better) -> str:
    none = f"no {'later ' if better.without else ''}release is without all of these"
    if better.without and not better.earlier:
        text = f"vllm {better.without} is the nearest release without any of these"
    elif better.without:
        text = f"{none}; the nearest earlier one that is: vllm {better.without}"
    elif better.fewest:
        return f"{none}; of the later ones vllm {better.fewest} has the fewest, {len(better.kept)}: {', '.join(better.kept)}"
    else:
        return none
    return f"{text} ({better.other or 'no'} other documented failure{'' if better.other == 1 else 's'})"


def _print_finding(finding: Finding) -> None:
    from ..audit.severity import severity

    case = finding.case
    say(f"\n{case.id}: {case.title}")
    _field("severity", severity(case))
    _field("shows as", f"{case.symptom.kind} ({' or '.join(case.symptom.phases)}), text like {case.symptom.pattern}")
    _field("because", finding.reason.removeprefix("affected: "))
    for form in finding.forms:
        _field("also as" if form.shows else "but not as", f"{form.name}: {form.reason}")
    _field("devices", ", ".join(case.devices) + ("; not in every run" if case.racy else ""))
    _field("first fixed", case.first_fixed() or "no fixed version is known")
    _field("workaround", case.workaround or "none known")
    _field("upstream", " ".join(dict.fromkeys((*case.upstream, *case.fixed_by))))


def _print_concern(concern: Concern) -> None:
    say(f"\n{concern.id}{'' if concern.counts else ' (note)'}: {concern.title}")
    _field("found", concern.found)
    _field("advice", concern.advice)


def _field(name: str, text: str) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    head = f"  {name + ':':13}"
    say(
        textwrap.fill(
            text,
            max(width, 40),
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
    )
