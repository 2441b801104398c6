"""``vllm-regress export``: a case as a script, as the text of a report, or as an OSV record."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .context import HELP, invocation, print_json, say, warn

if TYPE_CHECKING:
    from ..cases.model import Case
    from ..output.export.issue import UpstreamReport
    from ..output.export.standalone import StandaloneScript

EPILOG = "Exit codes: 0 written; 2 usage, or a case that cannot be exported; 4 internal error."
app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(epilog=EPILOG)
def export(
    context: typer.Context,
    case_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CASE]...", help="Ids of cases; all with --osv and none given."),
    ] = None,
    issue: Annotated[
        bool,
        typer.Option(
            "--issue", help="Print the text of vLLM's bug-report form, with the script in it."
        ),
    ] = False,
    ci_failure: Annotated[
        bool,
        typer.Option(
            "--ci-failure",
            help="Print the text of vLLM's form for a failing test in CI, with the script in it.",
        ),
    ] = False,
    collected: Annotated[
        bool,
        typer.Option(
            "--collect-env",
            help="With --issue or --ci-failure: run upstream's collect_env.py in the environment in which the failure was recorded, which must be "
            "built, and put its output into the text (Linux only).",
        ),
    ] = False,
    osv: Annotated[
        bool,
        typer.Option(
            "--osv", help="Print an OSV record instead. Reads the case file and runs nothing."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|DIR",
            help="Write to this file (default, and -: print it); with --osv a file for each case in this directory.",
        ),
    ] = None,
) -> None:
    """Write a standalone script that shows a failure: one file with its requirements, which imports
    nothing of this project.

    The script repeats a test that was recorded as REPRODUCED. pytest collects the case's tests for
    that; none is run.
    """
    if issue + ci_failure + osv > 1:
        raise UsageError("--issue, --ci-failure and --osv contradict each other: give one of them")
    if collected and not (issue or ci_failure):
        raise UsageError("--collect-env fills a report: give --issue or --ci-failure with it")
    if output == Path("-"):
        output = None
    if osv:
        _export_osv(context, case_ids or [], output)
        return
    if not case_ids or len(case_ids) != 1:
        raise UsageError(
            "name one case: a script shows one failure. `vllm-regress list` lists the cases"
        )
    (case,) = invocation(context).select(case_ids)
    from ..output.export.standalone import export_script

    script = export_script(case)
    text = script.text
    if issue or ci_failure:
        report = _report(case, script, collected=collected)
        text = report.text("bug" if issue else "ci-failure")
    if output is None:
        say(text.rstrip("\n"))
    else:
        from ..util.files import write_atomically

        write_atomically(output, text)
        say(f"{output}: {case.id}, test {script.test}")


def _report(case: Case, script: StandaloneScript, *, collected: bool) -> UpstreamReport:
    from ..answers.audit.boundaries import boundaries
    from ..answers.audit.verdict_table import read_table
    from ..cases.proofs.proof import FILE, read_proof
    from ..environments.recipes import find_file, load
    from ..output.export.issue import UpstreamReport

    output = ""
    if collected:
        from ..environments.cache import EnvironmentCache
        from ..output.export.collect_env import collect_env

        if sys.platform != "linux":
            raise UsageError(
                "--collect-env: Linux only, because it runs a script in an environment"
            )
        output = collect_env(script.result.environment, EnvironmentCache())
    proof = case.directory / FILE
    commits = read_proof(proof).commits if proof.exists() else ()
    ends = boundaries(case, read_table([case]))
    return UpstreamReport(case, script, ends, commits, load(find_file()).locks, output)


def _export_osv(context: typer.Context, case_ids: list[str], output: Path | None) -> None:
    from ..cases.proofs.rejudge import load_observations
    from ..output.export.osv import osv_record
    from ..util.files import write_atomically

    if output is not None and output.exists() and not output.is_dir():
        raise UsageError(
            f"-o {output}: not a directory. With --osv, name a directory, which gets a file for each case"
        )
    records = []
    for case in invocation(context).select(case_ids):
        try:
            records.append(osv_record(case, load_observations(case)))
        except UsageError as error:
            if case_ids:
                raise
            warn(f"left out: {error}")
    if output is None:
        print_json(records[0] if len(records) == 1 else records)
        return
    for record in records:
        write_atomically(output / f"{record['id']}.json", json.dumps(record, indent=2) + "\n")
    say(f"{output}: {len(records)} record{'' if len(records) == 1 else 's'}")
