"""What all commands of ``vllm-regress`` share: common options, the names of exit codes, and
printing. Command modules import this, not ``cli``; each has the name of its command, and parses,
delegates and prints.

Which exit code a command ends with is decided elsewhere: after a run by
``runner/batch.RunOutcome.exit_code``, after an error by ``cli.main``.

All printing is done here, with secrets masked and control characters escaped, so that no file, name
or error can control the terminal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..defaults import ASKED_DEVICES, RACY_TRIALS
from ..errors import CaseFileError, UsageError
from ..util.masking import mask, masker
from ..util.sizes import size_of
from ..util.text import printable
from ..util.validation import format_value

if TYPE_CHECKING:
    from ..cases.loading import LoadedCases
    from ..cases.model import Case
    from ..output.formats import OutputFiles
    from ..runner.batch import Executor, RunOptions
    from ..runner.progress import CaseLines, Say

OK, UNEXPECTED, USAGE, UNBUILT, INTERNAL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 130, 141
DISK = "30GiB"
HELP = {"help_option_names": ["-h", "--help"]}

# Options that several commands share: one word, one meaning (docs/reference/options-of-commands.md).
FORMAT = typer.Option("--format", help="What standard output looks like.")
"""With the allowed formats as a ``Literal``."""
FRESH = typer.Option("--fresh", help="Start over instead of resuming an interrupted command.")
"""Resuming is the rule, so that an interrupted command is repeated as it is."""
TextOrJson = Annotated[Literal["text", "json"], FORMAT]
Outputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE|DIR",
        help="Write results.json, page.html, summary.md or junit.xml, by the ending; without one "
        "a result file in that folder. Repeatable.",
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE.json|DIR",
        help="Write the results of the runs as JSON to this file or into this folder.",
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
        metavar="K/N",
        help="Run only shard K of N, divided by recorded durations; `report` merges the results.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="ray|ray://HOST|HOST:PORT",
        help="Use that Ray cluster (ray: RAY_ADDRESS, else the one on this machine, if you or "
        "root started it).",
    ),
]
GpusEach = Annotated[
    int | None,
    typer.Option(
        "--gpus", min=1, metavar="N", help="With --on: GPUs for each environment (default 1)."
    ),
]
Fresh = Annotated[bool, FRESH]
State = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.json",
        help="Keep the state in FILE.json and resume from it (default: in the cache).",
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=100,
        help=f"Run each test N times (default: 1; {RACY_TRIALS} where the case is racy).",
    ),
]
Branch = Annotated[
    str,
    typer.Option(
        metavar="REV",
        help="Branch of the clone on which a release without a tag is found by its date.",
    ),
]


def complete_case_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a case."""
    from ..cases.loading import default_cases_dir

    root = context.find_root().params.get("cases") or default_cases_dir()
    ids = sorted(file.parent.name for file in Path(root).glob("*/case.toml"))
    return [case_id for case_id in ids if case_id.startswith(incomplete)]


def complete_environments(incomplete: str) -> list[str]:
    """Complete the name of an environment."""
    from ..environments.recipes import find_file, load

    return [name for name in load(find_file()).recipes if name.startswith(incomplete)]


def _asked_device(device: str | None) -> str | None:
    if device is not None and device not in ASKED_DEVICES:
        raise UsageError(f"--device {format_value(device)}: allowed are {', '.join(ASKED_DEVICES)}")
    return device


CaseIds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CASE", help="Ids of cases (default: all).", autocompletion=complete_case_ids
    ),
]
CaseId = Annotated[
    str, typer.Argument(metavar="CASE", help="The case's id.", autocompletion=complete_case_ids)
]
Environment = Annotated[
    str,
    typer.Option(
        metavar="NAME|PATH",
        help="Environment or interpreter.",
        autocompletion=complete_environments,
    ),
]
Environments = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME|PATH",
        help="Environment or interpreter; repeatable.",
        autocompletion=complete_environments,
    ),
]
BaseEnvironment = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Environment in which commits, or releases of another package, are installed in turn "
        "(default: the one that fits best).",
        autocompletion=complete_environments,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help=f"{', '.join(ASKED_DEVICES)}: for all environments (default: each one's own).",
        callback=_asked_device,
        autocompletion=lambda: list(ASKED_DEVICES),
    ),
]


@dataclasses.dataclass(frozen=True)
class Invocation:
    """Options of ``vllm-regress`` itself.

    ``pytest_args`` are the arguments after ``--``, for pytest; those of ``ask`` are a command.
    """

    cases_dir: Path | None
    pytest_args: tuple[str, ...]
    verbose: bool = False
    yes: bool = False
    sources: tuple[str, ...] = ()
    wheel_index: str | None = None

    def run_options(self, device: str | None, workers: str | None = None) -> RunOptions:
        """Return the options of a run of batches."""
        from ..runner.batch import RunOptions

        return RunOptions(device, workers, self.pytest_args, self.cases_dir, self.verbose)

    def command(self, name: str, *arguments: str) -> str:
        """Return a command line for the user to copy, with the options of ``vllm-regress`` itself
        that decide what is run."""
        given = [("--cases", str(self.cases_dir))] if self.cases_dir else []
        given += [("--source", source) for source in self.sources]
        given += [("--wheel-index", self.wheel_index)] if self.wheel_index else []
        return shlex.join(["vllm-regress", *itertools.chain(*given), name, *arguments])

    def confirm_downloads(self, environments: Sequence[str], show: Say | None = None) -> None:
        """Say what must be downloaded for these environments, and ask whether to go on.

        ``show``: ``warn`` if standard output is a document.
        """
        from ..environments.downloads import downloads

        needed = downloads(environments)
        if needed is not None:
            (show or say)(str(needed))
            self.confirm()

    def confirm(self) -> None:
        """On a terminal, ask whether to go on, unless ``--yes`` was given.

        "No", Ctrl-C and Ctrl-D end the command with exit code 130.
        """
        if self.yes or not on_a_terminal():
            return
        try:
            confirmed = typer.confirm("Go on?", default=True)
        except typer.Abort:  # Ctrl-C or Ctrl-D
            confirmed = False
            say("")
        if not confirmed:
            warn("nothing was downloaded or run")
            raise typer.Exit(INTERRUPTED)

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


def make_executor(
    on: str | None, gpus: int | None, jobs: int | None, say: Say, progress: CaseLines | None = None
) -> Executor:
    """Return the executor that the options ask for: a cluster, or threads on this machine. Raises
    ``UsageError`` for options that contradict.

    ``progress`` shows what is built on this machine.
    """
    from ..runner.executors import ThreadsExecutor, build_with_cache
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


def end_if_idle(batches: Sequence[object], shard: str | None, files: OutputFiles) -> None:
    """End the command successfully if its shard is empty, with the result file that ``report``
    looks for."""
    if not batches and shard is not None:
        from ..cases.results import RunResult

        say(f"shard {shard} has nothing to do")
        files.save(RunResult(), tuple, say)
        raise typer.Exit(OK)


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


def print_field(name: str, text: str) -> None:
    """Print a named text below a heading, wrapped where it is read on a terminal."""
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


def print_upstream(case: Case) -> None:
    """Print the fields that tell a user what to do about a case."""
    print_field("first fixed", case.first_fixed() or "no fixed version is known")
    print_field("workaround", case.workaround or "none known")
    print_field("upstream", " ".join(dict.fromkeys((*case.upstream, *case.fixed_by))))


def say(line: str) -> None:
    """Print a line of output at once."""
    print(printable(mask(line)), flush=True)


def warn(line: str) -> None:
    """Print a line for the user on standard error."""
    with contextlib.suppress(OSError):  # a full disk: there is no other place to say so
        print(printable(mask(line)), file=sys.stderr, flush=True)
