"""``vllm-regress audit`` and ``uses``: what files say about versions and about a project, without
running anything of it."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..answers.audit.severity import severity
from ..errors import UsageError
from .context import (
    HELP,
    OK,
    UNEXPECTED,
    AsJson,
    Yes,
    confirm_downloads,
    invocation,
    print_json,
    say,
    warn,
)

if TYPE_CHECKING:
    from ..answers.audit.audit import Audit
    from ..answers.audit.matching import AuditMatch
    from ..answers.audit.preflight import Concern, Host
    from ..answers.uses.smoke import Smoke
    from ..answers.uses.use import Project

SCHEMA_VERSION = 1
MAX_LINE = 100
"""Characters of a line for one failure."""
EPILOG = "Exit codes: 0 nothing found (with --serve: nothing that can show); 1 something found; 2 usage or bad input; 4 internal error."
USES_EPILOG = (
    "Exit codes: 0 no release in the declared range (vllm>=X,<Y) breaks the project, or none is declared; 1 one does, or with --run "
    "an environment lacks something or a server does not start; 2 usage or bad input; 3 an environment could not be built; 4 internal error."
)
app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(epilog=EPILOG)
def audit(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR|LOCK|LIST|SBOM|vllm==VERSION|-]...",
            help="Environment directories, lock files, lists of packages, SBOMs, a requirement. They are read, not run (default: this interpreter).",
        ),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(
            "--python",
            metavar="PATH",
            help="Interpreter to audit; it is started to ask for its path.",
        ),
    ] = None,
    vllm: Annotated[
        list[str] | None,
        typer.Option(
            "--vllm",
            metavar="VERSION",
            help="Release of vLLM to audit, with the dependencies of its lock if there is one; repeatable.",
        ),
    ] = None,
    releases: Annotated[
        bool,
        typer.Option(
            "--releases", help="Summarize all releases that have a lock instead, one line each."
        ),
    ] = False,
    serve: Annotated[
        str | None,
        typer.Option(
            "--serve",
            metavar="COMMAND|FILE",
            help="Rank the failures by whether this deployment can show them: a command line with `vllm serve` or `docker run`, a Dockerfile, "
            "a compose file, a Kubernetes manifest, or Helm values. It is read, not run.",
        ),
    ] = None,
    preflight: Annotated[
        bool, typer.Option("--preflight", help="Also check the environment itself.")
    ] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Id of a case or preflight check that does not count; repeatable."
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print everything about each failure, not one line."),
    ] = False,
    as_json: AsJson = False,
    as_sarif: Annotated[bool, typer.Option("--sarif", help="Print SARIF 2.1.0.")] = False,
) -> None:
    """Find the documented failures of a combination of versions.

    Reads metadata and lists; imports and runs nothing.
    """
    from ..answers.audit import audit as answers
    from ..answers.audit.target import read_interpreter, read_target, release
    from ..answers.audit.upgrades import overview, table
    from ..answers.deployments.configuration import read_deployments
    from ..environments.recipes import find_file, load

    if releases and (targets or vllm or python or preflight or ignore or as_sarif or serve):
        raise UsageError(
            "--releases summarizes all releases: the only other option it takes is --json"
        )
    if as_json and as_sarif:
        raise UsageError("--json and --sarif contradict each other: give one of them")
    cases = invocation(context).cases()
    if releases:
        summary = overview(cases, load(find_file()).locks)
        if as_json:
            print_json(
                {"schema": SCHEMA_VERSION, "releases": [entry.to_json() for entry in summary]}
            )
        else:
            say(table(summary))
        raise typer.Exit(OK)
    ignored = set(ignore or ())
    answers.check_ignored(ignored, cases)
    interpreters = [python or Path(sys.executable)] if python or not (targets or vllm) else []
    inventories = [
        *map(read_target, targets or ()),
        *(release(version, load(find_file()).locks) for version in vllm or ()),
        *(read_interpreter(interpreter, cases) for interpreter in interpreters),
    ]
    host = _host() if preflight else None
    deployments = read_deployments(serve) if serve is not None else ()
    audits = [
        answers.audit(inventory, cases, host, ignored, deployments) for inventory in inventories
    ]
    if as_sarif:
        from ..answers.audit.sarif import to_sarif

        print_json(to_sarif(audits))
    elif as_json:
        print_json({"schema": SCHEMA_VERSION, "targets": [result.to_json() for result in audits]})
    else:
        for result in audits:
            _print(result, verbose)
    for note in dict.fromkeys(note for result in audits for note in result.notes):
        warn(f"note: {note}")
    raise typer.Exit(OK if all(result.clean for result in audits) else UNEXPECTED)


def _host() -> Host:
    from ..answers.audit.preflight import inspect_host

    return inspect_host()


def _print(result: Audit, verbose: bool) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    say(f"{result.source}: {versions or 'no package that a case is about'}")
    ignored = f"; ignored: {', '.join(result.ignored)}" if result.ignored else ""
    count = len(result.findings)
    say(f"{count or 'no'} documented failure{'' if count == 1 else 's'}{ignored}")
    if result.better is not None:
        _field("what to do", str(result.better))
    if verbose:
        for finding in result.findings:
            _print_finding(finding, result)
    else:
        _print_lines(result)
    for concern in result.concerns:
        _print_concern(concern)


def _print_lines(result: Audit) -> None:
    """Print a line for each failure, below the reason why the deployment can or cannot show it."""
    width = max((len(finding.case.id) for finding in result.findings), default=0)
    group = ""
    for finding in _grouped(result):
        relevance = result.relevance.get(finding.case.id)
        if relevance is not None and (heading := f"{relevance.reach}: {relevance.reason}") != group:
            group = heading
            say(f"\n{_cut(heading)}")
        say(_cut(f"  {severity(finding.case):12}  {finding.case.id:{width}}  {finding.case.title}"))
    if result.findings:
        say("\nAll about them: -v, or `vllm-regress show CASE`")


def _grouped(result: Audit) -> list[AuditMatch]:
    """Return the findings in their order, those with the same reason together, the reason of the
    worst first."""
    reasons: dict[tuple[int, str], list[AuditMatch]] = {}
    for finding in result.findings:
        relevance = result.relevance.get(finding.case.id)
        key = (relevance.reach.rank, relevance.reason) if relevance else (0, "")
        reasons.setdefault(key, []).append(finding)
    return [finding for findings in reasons.values() for finding in findings]


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 3].rstrip()}..."


def _print_finding(finding: AuditMatch, result: Audit) -> None:
    case = finding.case
    say(f"\n{case.id}: {case.title}")
    if relevance := result.relevance.get(case.id):
        _field("here", f"{relevance.reach}: {relevance.reason}")
    _field("severity", severity(case))
    _field(
        "shows as",
        f"{case.symptom.kind} ({' or '.join(case.symptom.phases)}), text like {case.symptom.pattern}",
    )
    _field("because", finding.reason.removeprefix("affected: "))
    _field("known by", finding.observed or "inferred: this very release was not run")
    for form in finding.forms:
        _field("also as" if form.shows else "but not as", f"{form.name}: {form.reason}")
    _field("devices", ", ".join(case.devices) + ("; not in every run" if case.racy else ""))
    _field("first fixed", case.first_fixed() or "no fixed version is known")
    _field("workaround", case.workaround or "none known")
    _field("upstream", " ".join(dict.fromkeys((*case.upstream, *case.fixed_by))))


def _print_concern(concern: Concern) -> None:
    say(f"\n{concern.id}{'' if concern.counts else ' (note)'}: {concern.title}")
    _field("found", concern.detail)
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


@app.command(epilog=USES_EPILOG)
def uses(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PATH]",
            help="Directory of a project, or one of its files (default: this directory).",
        ),
    ] = None,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Show what changed from release A to B of what PATH uses; without PATH everything.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Option, variable, route, metric or dotted name that does not count; repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
    as_sarif: Annotated[bool, typer.Option("--sarif", help="Print SARIF 2.1.0.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Also import and bind each use, and start each server command, in the environments of --env.",
        ),
    ] = False,
    environments: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="ENV", help="Environment for --run; repeatable."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Find the releases of vLLM that have everything a project uses.

    Reads its files, of which it imports and runs nothing.
    """
    from ..answers.api_history.store import history
    from ..answers.uses.answer import answer
    from ..answers.uses.presentation import report, to_json, to_sarif
    from ..answers.uses.project import read_project
    from ..util.report import to_markdown, to_terminal

    if as_json + as_sarif + as_markdown > 1:
        raise UsageError("--json, --sarif and --markdown contradict each other: give one of them")
    if diff is not None:
        if as_sarif or ignore or run:
            raise UsageError(
                "--diff takes --json or --markdown, but not --sarif, --ignore and --run"
            )
        _print_diff(diff, path, as_json, as_markdown)
        return
    if run != bool(environments) or (run and as_sarif):
        raise UsageError("--run needs --env ENV, --env needs --run, and neither goes with --sarif")
    path = path or Path()
    result = answer(read_project(path, history()), history(), ignore or ())
    source = str(path)
    smokes = _smoke(result.project, environments or (), yes=yes)
    if as_sarif:
        print_json(to_sarif(result, source))
    elif as_json:
        print_json(to_json(result, source, smokes))
    else:
        render = to_markdown if as_markdown else to_terminal
        say(render(report(result, source, smokes)).rstrip())
    for note in result.project.notes:
        warn(f"note: {note}")
    raise typer.Exit(UNEXPECTED if result.broken or any(smoke.failed for smoke in smokes) else OK)


def _smoke(project: Project, environments: Sequence[str], *, yes: bool) -> list[Smoke]:
    """Return what each environment has of a project."""
    if not environments:
        return []
    from ..answers.api_history.store import history
    from ..answers.uses.smoke import smoke
    from ..engines.standalone import bare_session

    confirm_downloads(environments, yes=yes)
    with bare_session(warn, device="sim") as session:
        return [
            smoke(session, environment, project, history(), warn) for environment in environments
        ]


def _print_diff(
    versions: tuple[str, str], path: Path | None, as_json: bool, as_markdown: bool
) -> None:
    from ..answers.api_history.store import history
    from ..answers.uses.diff import diff, release_number, report, to_json
    from ..answers.uses.project import read_project
    from ..util.report import to_markdown, to_terminal

    before, after = (release_number(history(), version) for version in versions)
    project = read_project(path, history()) if path is not None else None
    used_changes = diff(history(), before, after, project)
    if as_json:
        print_json(to_json(used_changes, versions))
    else:
        render = to_markdown if as_markdown else to_terminal
        say(render(report(used_changes, versions)).rstrip())
    for note in project.notes if project is not None else ():
        warn(f"note: {note}")
