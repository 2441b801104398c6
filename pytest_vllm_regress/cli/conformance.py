"""``vllm-regress conformance``: runs the conformance suite in environments one by one, keeps a record, and writes the table of it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..conformance.record import add, merged, read_faults, read_record, unexplained, write_record
from ..conformance.suite import ON_GPU, asks_for_gpu, run_suite, suite_directory
from ..conformance.table import table
from ..errors import BuildError, UsageError
from ..runner.runner import build_with_cache
from ..util.files import write_whole
from ..util.signals import terminate_as_interrupt
from .context import HELP, OK, UNBUILT, UNEXPECTED, Source, WheelIndex, invocation, say, warn

app = typer.Typer(context_settings=HELP)
RECORD = Path("docs/records/conformance.json")
TABLE = Path("docs/conformance.md")


@app.command(
    epilog="Exit codes: 0 every failed cell is explained by an upstream fault; 1 not; 2 usage; 3 an environment could not be built."
)
def conformance(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Environments to run; without any, only the table is written."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run those that the record has already.")] = False,
    only: Annotated[
        str | None,
        typer.Option(
            "-k",
            metavar="EXPRESSION",
            help="Run only these checks, as pytest's -k selects them; the record keeps the others.",
        ),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.json", help="Take in what this other record has: its cells replace the same ones."),
    ] = None,
    source: Source = None,
    wheel_index: WheelIndex = None,
    record: Annotated[
        Path, typer.Option(metavar="FILE.json", help="What was seen, kept after every environment.")
    ] = RECORD,
    write: Annotated[Path, typer.Option(metavar="FILE.md", help="The table of everything in the record.")] = TABLE,
) -> None:
    """Run the conformance suite in each environment and write the table: version by check.

    An interrupted run goes on where it stopped: environments that the record has are left out, but not where -k
    or arguments for pytest (after --) select checks: their cells alone are replaced (`NAME -- -m smoke`).
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
    part = any(each not in ON_GPU for each in selection)
    with terminate_as_interrupt():
        for name in dict.fromkeys(names or ()):
            known = [ran for ran in runs.values() if ran.environment == name and (ran.device == "gpu") is on_gpu]
            if known and known[0].whole and not (again or part):
                say(f"{name} on {known[0].device}: in the record since {known[0].at}; --again runs it anew")
                continue
            try:
                build(name)
            except BuildError as error:
                warn(f"{name}: {error}")
                unbuilt.append(name)
                continue
            add(runs, dataclasses.replace(run_suite(name, suite, selection), whole=not part))
            write_record(record, runs)
    write_whole(write, "".join(f"{line}\n" for line in table(runs.values(), faults)))
    red = unexplained(runs.values(), faults)
    for ran, cell in red:
        warn(f"{ran.environment} {cell.generation} {cell.section}: {cell.check}: {cell.reason}")
    raise typer.Exit(UNBUILT if unbuilt else UNEXPECTED if red else OK)


if __name__ == "__main__":
    sys.exit(app())
