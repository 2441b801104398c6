"""``vllm-regress report``, ``site``, ``judge`` and ``compare``: stored results shown, as a site,
judged again, and compared."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..util.files import check_distinct, check_writable, distinct_files
from ..util.paths import cache_root
from .context import (
    HELP,
    INTERRUPTED,
    OK,
    UNEXPECTED,
    AsJson,
    Invocation,
    Yes,
    confirm_downloads,
    invocation,
    print_columns,
    print_json,
    say,
    warn,
)

if TYPE_CHECKING:
    from ..cases.model import Case
    from ..cases.results import RunResult, TestResult

STDOUT = Path("-")
app = typer.Typer(context_settings=HELP)


@app.command()
def report(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE|DIR", help="Result files, or directories of them (default: the last run)."
        ),
    ] = None,
    as_json: AsJson = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a page with all verdicts and their evidence to FILE; - prints it.",
        ),
    ] = None,
    pages: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the same as a folder with a page for each case and environment.",
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write Markdown to FILE, for the summary of a CI job; - prints it."
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML to FILE; - prints it.")
    ] = None,
    record: Annotated[
        bool,
        typer.Option(
            "--record", help="Add the verdicts to the table beside the cases (verdicts.json)."
        ),
    ] = False,
) -> None:
    """Merge result files of several runs, shards and machines. The later of two results for the
    same test counts.

    Exit code 0: all verdicts as expected.
    """
    from ..cases.results import merge_results, read_results

    files = result_files(paths or [])
    runs = [read_results(path) for path in files]
    prints = [
        name
        for name, path in (("--html -", html), ("--markdown -", markdown), ("--junit -", junit))
        if path == STDOUT
    ]
    prints += ["--json"] * as_json
    if len(prints) > 1:
        raise UsageError(
            f"{' and '.join(prints)} contradict each other: standard output can have one of them"
        )
    _check_outputs(
        [path for path in (html, markdown, junit) if path is not None and path != STDOUT],
        pages,
        files,
    )
    show = warn if prints else say
    merged = merge_results(runs)
    if html is not None or pages is not None:
        from ..output.pages.run_page import page, write_pages

        known = invocation(context).cases_if_any()
        if html is not None:
            _write(html, page(merged, known))
            if html != STDOUT:
                show(f"page: {html}")
        if pages is not None:
            show(f"pages: {write_pages(pages, merged, known)}")
    if markdown is not None:
        from ..output.markdown_and_junit import markdown_text

        _write(markdown, markdown_text(merged))
    if junit is not None:
        from ..output.markdown_and_junit import junit_xml

        _write(junit, junit_xml(merged))
    if record:
        from ..answers.audit import verdict_table

        cases = invocation(context).cases()
        place = cases[0].directory.parent
        show(
            f"{verdict_table.record(place, cases, merged.results)} verdicts are new in {place / verdict_table.FILE}"
        )
    if as_json:
        print_json(merged.to_json())
    elif not prints:
        from ..output.table import print_to_console

        print_to_console(merged)
    raise typer.Exit(OK if merged.as_expected else UNEXPECTED)


@app.command(
    epilog="Exit codes: 0 written; 2 usage or bad input, such as a link that leads nowhere; 4 internal error."
)
def site(
    context: typer.Context,
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A new or empty folder, or one of an earlier site."),
    ],
) -> None:
    """Write a site of everything that is recorded about the cases, for any static host. Runs
    nothing.

    It has an overview, a page and history for each case, a page and an SVG badge for each release
    of vLLM, and the documentation if this is a checkout of the project. All links are checked
    first. DIR/index.html also works without a server.
    """
    from ..environments.recipes import find_file, load
    from ..output.pages.site import write_site
    from ..util.paths import shipped

    project = shipped("cases").parent
    with_docs = (project / "docs" / "README.md").is_file()
    count = write_site(
        directory,
        invocation(context).cases(),
        load(find_file()).locks,
        project if with_docs else None,
    )
    say(f"site: {directory / 'index.html'} ({count} files)")


@app.command()
def judge(
    context: typer.Context,
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="The case's id.")],
    stored: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE|DIR]",
            help="Result files, or directories of them (default: the observations of the case's proof, and your last runs).",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="FILE.json",
            help="Write the results with their new verdicts to FILE.json.",
        ),
    ] = None,
) -> None:
    """Recompute the verdicts of a case from stored results, after its kind, pattern, parts or range
    were changed.

    Runs nothing. Lists which verdicts change, and which observations are out of date because a test
    or probe changed since.
    Exit codes: 0 all verdicts as expected and no observation is out of date; 1 otherwise; 2 usage
    or bad input.
    """
    from ..cases import results
    from ..cases.proofs.rejudge import OBSERVATIONS_FILE, rejudge_case

    (case,) = invocation(context).select([case_id])
    recorded = (
        path
        for path in (case.directory / OBSERVATIONS_FILE, cache_root() / "results")
        if path.exists()
    )
    files = _existing_files(stored or list(recorded))
    if write is not None:
        check_distinct([write], files)
    judgements = rejudge_case(case, _readable(files, strict=bool(stored)))
    if not judgements:
        raise UsageError(
            f"no result of {case.id} in the {len(files)} files that were read. Run it first: `{invocation(context).command('run', case.id)}`"
        )
    for judgement in judgements:
        now = judgement.now
        change = (
            f"{judgement.before.verdict.value} -> {now.verdict.value}"
            if judgement.changed
            else now.verdict.value
        )
        say(f"{change:34} {now.environment} on {now.device}: {now.test}")
        say(f"    {now.reason}")
        if judgement.stale:
            say(f"    out of date: {judgement.stale}")
    if write is not None:
        results.write_results(
            write, results.RunResult(tuple(judgement.now for judgement in judgements))
        )
    stale = sum(bool(judgement.stale) for judgement in judgements)
    changed = sum(judgement.changed for judgement in judgements)
    say(
        f"observations judged again: {len(judgements)}; verdicts changed: {changed}; out of date: {stale}"
    )
    raise typer.Exit(
        OK if all(entry.now.expected and not entry.stale for entry in judgements) else UNEXPECTED
    )


def _check_outputs(files: list[Path], folder: Path | None, inputs: list[Path]) -> None:
    """Raise ``UsageError`` if an output would replace an input or another output, or if a file
    cannot be written."""
    check_distinct([*files, *([] if folder is None else [folder])], inputs)
    for path in files:
        check_writable(path)


def _write(path: Path, text: str) -> None:
    """Write a document to ``path``, or print it if that is ``-``."""
    from ..util.files import write_atomically

    if path == STDOUT:
        say(text)
    else:
        write_atomically(path, text)


def result_files(paths: list[Path]) -> list[Path]:
    """Return the files at ``paths`` and in directories among them; without paths, the result file
    of the last run."""
    if not paths:
        stored = sorted((cache_root() / "results").glob("*.json"))
        if not stored:
            raise UsageError(
                "no run is stored yet: give result files, or start a run with `vllm-regress run`"
            )
        return stored[-1:]
    for path in paths:
        if path.is_dir() and not any(path.glob("*.json")):
            raise UsageError(f"{path}: no result file (*.json) in this directory")
    return _expand(paths)


def _existing_files(paths: list[Path]) -> list[Path]:
    files = _expand(paths)
    if not files:
        places = f" in {', '.join(map(str, paths))}" if paths else ""
        raise UsageError(f"no result files{places}. `vllm-regress run` writes them")
    return files


def _expand(paths: list[Path]) -> list[Path]:
    return distinct_files(
        file
        for path in paths
        for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])
    )


def _readable(files: list[Path], *, strict: bool) -> list[RunResult]:
    """Read the result files.

    Unless ``strict``, skip those of another format with a warning: they may be copies of older
    runs.
    """
    from ..cases import results

    runs = []
    for file in files:
        try:
            runs.append(results.read_results(file))
        except UsageError as error:
            if strict:
                raise
            warn(f"skipped: {error}")
    return runs


@app.command(
    epilog="Exit codes: 0 nothing new breaks; 1 the change has a failure that was not there before; 2 usage or bad input; 4 internal error."
)
def compare(
    context: typer.Context,
    before: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A release (0.8.4), an environment with a lock (vllm-0.8.4), an environment's directory or its bin/python, a list of packages, "
            "a lock file, a requirement, or - for standard input.",
        ),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The same, after the change.")],
    as_json: AsJson = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, for a comment on a pull request.")
    ] = False,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Run the cases of which nothing is recorded; A and B are environments or releases (Linux only).",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Say which documented failures a change of versions fixes, breaks and leaves.

    Reads recorded results and ranges, and runs only with --run.
    """
    from ..answers.audit import comparison
    from ..answers.audit.severity import severity
    from ..answers.audit.target import read_sides

    if as_json and markdown:
        raise UsageError("--json and --markdown contradict each other: give one of them")
    cases = invocation(context).cases()
    old, new = read_sides(before, after)
    result = comparison.compare(old, new, cases)
    if run:
        concerned = [change.case for change in result.changes]
        missing = {
            _environment(name): comparison.not_recorded(side, concerned)
            for name, side in ((before, old), (after, new))
        }
        result = comparison.compare(old, new, cases, _run(invocation(context), missing, yes))
    if as_json:
        print_json({"schema": 1, **result.to_json()})
    elif markdown:
        say(result.markdown())
    else:
        rows = [
            (change.effect, change.case.id, severity(change.case), change.after, change.case.title)
            for change in result.changes
        ]
        print_columns(("effect", "case", "severity", "after the change", "failure"), rows)
        say(f"{result.before} to {result.after}: {result.counts()}")
    for note in result.notes:
        warn(f"note: {note}")
    raise typer.Exit(UNEXPECTED if result.of(comparison.UpgradeEffect.BREAKS) else OK)


def _environment(side: str) -> str:
    """Return the environment that runs a side of a comparison.

    Raises ``UsageError`` for a list of packages.
    """
    from ..util.versions import is_version

    if Path(side).exists():
        raise UsageError(
            f"--run: {side} is a file or a directory: name an environment, such as vllm-0.8.4, or a release"
        )
    return f"vllm-{side}" if is_version(side) else side


def _run(
    command: Invocation, missing: Mapping[str, tuple[Case, ...]], yes: bool
) -> tuple[TestResult, ...]:
    """Run the cases that are missing in each environment, and return their results."""
    from ..runner.batch import Batch
    from ..runner.build import build_with_cache, check_environments
    from ..runner.run import LocalMachine, local_request, run_batches
    from ..runner.slots import Spare, machine_room
    from ..util.signals import terminate_as_interrupt

    if sys.platform != "linux":
        raise UsageError("--run: Linux only, because it starts engines")
    batches = [Batch(name, cases, {}) for name, cases in missing.items() if cases]
    check_environments(batches, gpu=False)
    confirm_downloads([batch.environment for batch in batches], yes=yes, show=warn)
    machine = LocalMachine(build_with_cache(warn), machine_room(), Spare.of_machine())
    with terminate_as_interrupt():
        outcome = run_batches(local_request(batches, machine, command.run_options(None), warn))
    if outcome.interrupted:
        warn("interrupted: not everything was run")
        raise typer.Exit(INTERRUPTED)
    return outcome.run.results
