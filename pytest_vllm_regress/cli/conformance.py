"""``vllm-regress conformance``: run the conformance suite in environments and write the table.
``upstream``: run vLLM's own tests.

``states``: measure health addresses and shutdown of releases.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import BuildError, UsageError
from ..runner.build import build_with_cache
from ..surveys.conformance.record import add, merged, read_faults, unexplained
from ..surveys.conformance.record_file import read_record, write_record
from ..surveys.conformance.suite import ON_GPU, asks_for_gpu, run_suite, suite_directory
from ..surveys.conformance.table import table
from ..util.files import write_atomically
from ..util.signals import terminate_as_interrupt
from .context import (
    HELP,
    OK,
    UNBUILT,
    UNEXPECTED,
    AsJson,
    invocation,
    print_columns,
    print_json,
    say,
    warn,
)

app = typer.Typer(context_settings=HELP, add_completion=False)
RECORD = Path("docs/records/conformance.json")
TABLE = Path("docs/generated/conformance.md")
UPSTREAM_EPILOG = "Exit codes: 0 no test failed; 1 a test failed; 2 usage or bad input; 3 something could not be built; 4 internal error."


@app.command(
    epilog="Exit codes: 0 a known upstream fault explains every failed cell; 1 otherwise; 2 usage; 3 an environment could not be built."
)
def conformance(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Environments to run the suite in (default: none, only write the table).",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Run environments even if the record has them.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            "-k",
            metavar="EXPRESSION",
            help="Run only the checks that pytest's -k selects; the record keeps the results of the others.",
        ),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.json",
            help="Merge this record into the own one; its cells take precedence.",
        ),
    ] = None,
    record: Annotated[
        Path,
        typer.Option(
            metavar="FILE.json", help="Record of all results, saved after every environment."
        ),
    ] = RECORD,
    write: Annotated[
        Path, typer.Option(metavar="FILE.md", help="File for the table of all results.")
    ] = TABLE,
) -> None:
    """Run the conformance suite in environments.

    The table is version by check.

    Environments that the record has are skipped, so that an interrupted run resumes. If -k or
    arguments for pytest (after --) select checks, nothing is skipped, and only the cells of these
    checks are replaced (`NAME -- -m smoke`).
    """
    suite = suite_directory()
    faults = read_faults(suite / "known.toml")
    runs = read_record(record)
    for file in merge or ():
        if not file.exists():
            raise UsageError(f"--merge {file}: there is no such file")
        for ran in read_record(file).values():
            runs[ran.key] = merged(runs[ran.key], ran) if ran.key in runs else ran
    if merge:
        write_record(record, runs)
    build = build_with_cache(say)
    unbuilt = []
    selection = [*(("-k", only) if only else ()), *invocation(context).pytest_args]
    on_gpu = asks_for_gpu(selection)
    partial = any(argument not in ON_GPU for argument in selection)
    with terminate_as_interrupt():
        for name in dict.fromkeys(names or ()):
            recorded = [
                ran
                for ran in runs.values()
                if ran.environment == name and (ran.device == "gpu") is on_gpu
            ]
            if recorded and recorded[0].whole and not (again or partial):
                say(
                    f"{name} on {recorded[0].device}: in the record since {recorded[0].at}; --again runs it again"
                )
                continue
            try:
                build(name)
            except BuildError as error:
                warn(f"{name}: {error}")
                unbuilt.append(name)
                continue
            add(runs, dataclasses.replace(run_suite(name, suite, selection), whole=not partial))
            write_record(record, runs)
    write_atomically(write, "".join(f"{line}\n" for line in table(runs.values(), faults)))
    unexplained_cells = unexplained(runs.values(), faults)
    for ran, cell in unexplained_cells:
        warn(f"{ran.environment} {cell.generation} {cell.section}: {cell.check}: {cell.reason}")
    raise typer.Exit(UNBUILT if unbuilt else UNEXPECTED if unexplained_cells else OK)


if __name__ == "__main__":
    sys.exit(app())


@app.command(epilog=UPSTREAM_EPILOG)
def upstream(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|FOLDER",
            help="Tests, from the root of vLLM's sources: tests/entrypoints/openai.",
        ),
    ],
    ref: Annotated[
        str, typer.Option("--ref", metavar="REV", help="The revision whose tests are run.")
    ],
    env: Annotated[
        str,
        typer.Option(
            "--env", metavar="NAME|PATH", help="The environment or interpreter that runs them."
        ),
    ],
    replaced: Annotated[
        str,
        typer.Option(
            "--replace",
            metavar="CLASSES",
            help="Which classes ours replace: server, runner, server,runner or none.",
        ),
    ] = "server",
    test_timeout: Annotated[
        float, typer.Option("--test-timeout", metavar="S", min=1, help="Seconds for each test.")
    ] = 300.0,
    run_timeout: Annotated[
        float | None,
        typer.Option("--run-timeout", metavar="S", min=1, help="Seconds for the whole run."),
    ] = None,
    destination: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Also write the results to FILE as JSON."),
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="Append pytest's output to FILE.")
    ] = None,
    dossiers: Annotated[
        Path,
        typer.Option(
            "--dossiers",
            metavar="DIR",
            help="Folder for the dossiers of servers that do not start.",
        ),
    ] = Path("vllm-regress-dossiers"),
) -> None:
    """Run vLLM's own tests on the simulated device.

    Arguments after -- go to pytest.
    """
    from ..engines.standalone import bare_session
    from ..environments.git import Repository
    from ..surveys.upstream import report
    from ..surveys.upstream.listed import listed_tests
    from ..surveys.upstream.run import Limits, Request, run_tests
    from ..surveys.upstream.tree import write_tree
    from ..util.rundir import scratch

    classes = tuple(name for name in replaced.split(",") if name != "none")
    if wrong := set(classes) - {"server", "runner"}:
        raise UsageError(
            f"--replace {', '.join(sorted(wrong))}: allowed is server, runner, server,runner or none"
        )
    sources = invocation(context).sources
    if len(sources) != 1:
        raise UsageError("upstream: give the clone of vLLM's sources as --source PATH")
    repository = Repository.at(Path(sources[0]))
    with bare_session(warn, device="sim") as session, scratch() as folder:
        target = session.target(env)
        (folder / "tree").mkdir()
        tree = write_tree(repository, ref, folder / "tree")
        files = tree.select(paths)
        request = Request(
            tree,
            files,
            target,
            dossiers,
            classes,
            Limits(test_timeout, run_s=run_timeout),
            invocation(context).pytest_args,
            listed_tests(files),
        )
        done = run_tests(request, log or folder / "pytest.log", warn)
    for line in report.lines(done):
        say(line)
    print_columns(("outcome", "tests"), report.count_rows(done.results))
    if destination is not None:
        write_atomically(
            destination, report.document(done, target.versions["vllm"], tree.commit.id)
        )
    raise typer.Exit(
        UNEXPECTED if any(result.outcome == "failed" for result in done.results) else OK
    )


@app.command(
    epilog="Exit codes: 0 everything was measured; 1 some rows could not be measured; 2 usage; 3 an environment could not be built; "
    "130 interrupted."
)
def states(
    context: typer.Context,
    environments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENVIRONMENT", help="Environments: vllm-0.11.2. None: only write the pages."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="health|shutdown|growth", help="Measure only this table."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure rows that the record has, too.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="FILE.json", help="Read and save all results here, after each row."
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write", metavar="DIR", help="Write health.md, shutdown.md and growth.md there."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure health, shutdown and growth of releases.

    That is what their health addresses say while the engine works, sleeps, hangs or is dead, how
    their servers end, and how their memory grows.

    Servers run on the simulated device. Rows that --record has are not measured again, so that an
    interrupted command can be repeated.
    """
    from ..surveys.states.measure import TABLES, measure_environment
    from ..surveys.states.record import pages, read_record, to_json, write_record

    names = environments or []
    tables = only or list(TABLES)
    if unknown := [table for table in tables if table not in TABLES]:
        raise UsageError(f"--only {unknown[0]}: allowed are {', '.join(TABLES)}")
    releases = read_record(record) if record else {}
    if not names and not releases:
        raise UsageError("states: name environments (states vllm-0.11.2), or a record by --record")
    invocation(context).confirm_downloads(names, warn)
    complete = True
    for name in names:
        known = releases.get(name)
        if known is not None and again:
            known = known.without(tables)
        if known is None or known.missing(tables):
            for release in measure_environment(name, known, tables, warn):
                releases[name] = release
                if record:
                    write_record(record, releases)
        complete = complete and name in releases and not releases[name].missing(tables)
    if write:
        for file, lines in pages(releases.values()).items():
            write_atomically(write / file, "".join(f"{line}\n" for line in lines))
    if as_json:
        print_json({name: to_json(releases[name]) for name in names if name in releases})
    raise typer.Exit(OK if complete else UNEXPECTED)
