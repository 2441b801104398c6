"""What all commands of ``vllm-regress`` share: common options, the names of exit codes, and
printing. Command modules import this, not ``cli``.

Which exit code a command ends with is decided elsewhere: after a run by
``runner/batch.RunOutcome.exit_code``, after an error by ``cli.main``.

All printing is done here, with secrets masked and control characters escaped, so that no file, name
or error can control the terminal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..defaults import ASKED_DEVICES
from ..errors import CaseFileError, UsageError
from ..util.masking import mask, masker
from ..util.sizes import size_of
from ..util.text import printable
from ..util.validation import format_value

if TYPE_CHECKING:
    from ..cases.loading import LoadedCases
    from ..cases.model import Case
    from ..runner.batch import Executor, RunOptions
    from ..runner.progress import CaseLines, Say

OK, UNEXPECTED, USAGE, UNBUILT, INTERNAL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 130, 141
DISK = "30GiB"
HELP = {"help_option_names": ["-h", "--help"]}
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Download without asking. Without a terminal there is no question."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", min=1, help="Environments at a time (default: by cores and memory)."
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="K/N",
        help="Run only shard K of N, divided by recorded durations; `report` merges the results.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ray|ray://HOST|HOST:PORT",
        help="Run on that Ray cluster (ray: RAY_ADDRESS, else the one on this machine, if you or root started it).",
    ),
]
GpusEach = Annotated[
    int | None,
    typer.Option(
        "--gpus", min=1, metavar="N", help="With --on: GPUs for each environment (default 1)."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CaseIds = Annotated[
    list[str] | None, typer.Argument(metavar="CASE", help="Ids of cases (default: all).")
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help=f"{', '.join(ASKED_DEVICES)}: for all environments (default: each environment's own).",
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(
        "--results",
        metavar="DIR|FILE.json",
        help="Write the results to this file or directory as JSON.",
    ),
]


def _use_sources(sources: list[str] | None) -> list[str] | None:
    if sources:
        from ..environments.sources import set_clones

        set_clones(sources)
    return sources


def _use_wheels(index: str | None) -> str | None:
    if index:
        from ..environments.sources import set_wheel_index

        set_wheel_index(index)
    return index


WheelIndex = Annotated[
    str | None,
    typer.Option(
        "--wheel-index",
        metavar="URL",
        help="A package index with {commit} in its address: vllm@REV then installs the commit's own wheel, for every device.",
        callback=_use_wheels,
    ),
]
"""Like ``Source``, an option that takes effect by being given."""
Source = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="[PACKAGE=]PATH|URL",
        help="The clone in which names with @REV are looked up (default package: vllm). A URL is cloned once, into the cache.",
        callback=_use_sources,
    ),
]
"""An option of every command that takes environments.

It takes effect by being given; the command does not pass it on.
"""


@dataclasses.dataclass(frozen=True)
class Invocation:
    """Options of ``vllm-regress`` itself.

    ``pytest_args`` are the arguments after ``--``, for pytest; those of ``ask`` are a command.
    """

    cases_dir: Path | None
    pytest_args: tuple[str, ...]
    verbose: bool = False

    def run_options(self, device: str | None, workers: str | None = None) -> RunOptions:
        """Return the options of a run of batches."""
        from ..runner.batch import RunOptions

        return RunOptions(device, workers, self.pytest_args, self.cases_dir, self.verbose)

    def command(self, name: str, *arguments: str) -> str:
        """Return a command line for the user to copy, with --cases if it was given."""
        cases_dir = ["--cases", str(self.cases_dir)] if self.cases_dir else []
        return shlex.join(["vllm-regress", *cases_dir, name, *arguments])

    def directory(self) -> Path:
        from ..cases.loading import default_cases_dir
        from ..util.paths import shipped

        if self.cases_dir is not None:
            return self.cases_dir
        directory = default_cases_dir()
        if directory != shipped("cases"):
            warn(f"cases: {directory}")
        return directory

    @functools.cached_property
    def loaded(self) -> LoadedCases:
        """The valid cases of the directory, and what is wrong with the other files."""
        from ..cases.loading import load_valid_cases

        return load_valid_cases(self.directory())

    def cases(self) -> tuple[Case, ...]:
        """Return all valid cases, after a warning for each invalid case file."""
        for problem in self.loaded.problems:
            warn(f"warning: invalid case file, left out: {problem}")
        return self.loaded.cases

    def select(self, case_ids: Sequence[str]) -> tuple[Case, ...]:
        """Return the cases with these ids, or all cases if no id is given.

        An invalid file of another case is only a warning, and that case is left out. Raises
        ``CaseFileError`` if all cases are requested and a file is invalid, and ``UsageError`` for
        an unknown id.
        """
        from ..cases.loading import select_cases

        problems = "\n".join(self.loaded.problems)
        if problems and not case_ids:
            raise CaseFileError(f"{problems}\nCorrect this, or name the cases to use")
        valid_ids = {case.id for case in self.loaded.cases}
        if problems and not valid_ids.issuperset(case_ids):
            warn(f"invalid case files: {problems}")
            return select_cases(self.loaded.cases, case_ids)
        return select_cases(self.cases(), case_ids)

    def cases_if_any(self) -> tuple[Case, ...]:
        """Return the valid cases, or none if there is no directory of cases: result files can be
        read without them."""
        try:
            return self.cases()
        except UsageError:
            return ()


def disk_limit(text: str) -> int:
    """Return the limit given with ``--disk``, in bytes.

    Raises ``UsageError`` if it is not a size.
    """
    limit = size_of(text)
    if limit is None:
        raise UsageError(f"--disk {format_value(text)}: allowed is a size such as {DISK}")
    return limit


def invocation(context: typer.Context) -> Invocation:
    """Return the options of ``vllm-regress`` that a subcommand was given with."""
    shared = context.obj
    assert isinstance(shared, Invocation)
    return shared


def check_device(device: str | None) -> None:
    """Raise ``UsageError`` for an unknown --device."""
    if device is not None and device not in ASKED_DEVICES:
        raise UsageError(f"--device {format_value(device)}: allowed are {', '.join(ASKED_DEVICES)}")


def confirm_downloads(environments: Sequence[str], *, yes: bool, show: Say | None = None) -> None:
    """Show what must be downloaded for these environments, and ask whether to go on (``confirm``).

    ``show``: ``warn`` if JSON is printed.
    """
    from ..environments.downloads import downloads

    needed = downloads(environments)
    if needed is None:
        return
    (show or say)(str(needed))
    confirm(yes=yes)


def confirm(*, yes: bool) -> None:
    """On a terminal, ask whether to go on, unless ``yes`` was given.

    "No", Ctrl-C and Ctrl-D end the command with exit code 130.
    """
    if yes or not on_a_terminal():
        return
    try:
        confirmed = typer.confirm("Go on?", default=True)
    except typer.Abort:  # Ctrl-C or Ctrl-D
        confirmed = False
        say("")
    if not confirmed:
        warn("nothing was downloaded or run")
        raise typer.Exit(INTERRUPTED)


def end_if_idle(batches: Sequence[object], shard: str | None, destination: Path | None) -> None:
    """End the command successfully if its shard is empty, with the result file that ``report``
    looks for."""
    if not batches and shard is not None:
        from ..cases.results import RunResult
        from ..runner.result_files import save_results
        from ..util.paths import writable_root

        say(f"shard {shard} has nothing to do")
        save_results(RunResult(), destination, writable_root() / "results", say)
        raise typer.Exit(OK)


def make_executor(
    on: str | None, gpus: int | None, jobs: int | None, say: Say, progress: CaseLines | None = None
) -> Executor:
    """Return the executor that the options ask for: a cluster, or threads on this machine. Raises
    ``UsageError`` for options that contradict.

    ``progress`` shows what is built on this machine.
    """
    from ..runner.build import build_with_cache
    from ..runner.executors import ThreadsExecutor
    from ..runner.slots import machine_room

    if on is None:
        check_gpus(gpus)
        build = build_with_cache(say)
        return ThreadsExecutor(
            progress.watching(build) if progress else build, jobs or machine_room(), say
        )
    from ..runner.ray_executor import RayExecutor

    if jobs is not None:
        raise UsageError(
            "--jobs and --on contradict each other: on a cluster, its free resources decide how many batches run side by side"
        )
    return RayExecutor(on, say, gpus)


def check_gpus(gpus: int | None) -> None:
    """Raise ``UsageError`` for --gpus without --on."""
    if gpus is not None:
        raise UsageError("--gpus goes with --on: here GPUs are leased as tests ask for them")


@contextlib.contextmanager
def cluster(on: str | None) -> Iterator[None]:
    """Keep one connection to the cluster while a command uses it.

    Does nothing if no cluster was named.
    """
    if on is None:
        yield
    else:
        from ..runner.ray_cluster import connected

        with connected(on):
            yield


def on_a_terminal() -> bool:
    """Return whether a user reads our output and can answer."""
    # A stream that was closed before the start is None.
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def print_json(value: object) -> None:
    """Print a value as JSON in ASCII.

    Secrets are masked value by value, so that the output stays valid JSON.
    """
    from ..cases.results import mask_values
    from ..util import codec

    text = json.dumps(mask_values(codec.encode(value), masker()), indent=2)
    # GitHub Actions would obey ##[error]. Both signs stand in texts only, where JSON allows an
    # escape.
    print(text.replace("\x7f", "\\u007f").replace("##[", "#\\u0023["))


def print_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their titles, one line each, with columns as wide as their widest cell."""
    from ..util.report import columns

    print("\n".join(columns(titles, rows)))


def say(line: str) -> None:
    """Print a line of output at once."""
    print(printable(mask(line)), flush=True)


def warn(line: str) -> None:
    """Print a line for the user on standard error."""
    with contextlib.suppress(OSError):  # a full disk: there is no other place to say so
        print(printable(mask(line)), file=sys.stderr, flush=True)
