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
import functools
import itertools
import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from .._version import __version__
from ..errors import CaseFileError, UsageError
from ..util.masking import mask, masker
from ..util.sizes import size_of
from ..util.text import printable, printable_output, render_text
from ..util.validation import format_value, json_or_text

if TYPE_CHECKING:
    from ..cases.kept import LoadedCases
    from ..cases.model import Case
    from ..output.formats import OutputFiles
    from ..runner.batch import Batch, Executor, RunOptions
    from ..runner.progress import CaseLines, Say
    from ..runner.run import RunRequest
    from ..util.report import Report

OK, UNEXPECTED, USAGE, UNBUILT, INTERNAL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 130, 141
DISK = "30GiB"
HELP = {"help_option_names": ["-h", "--help"]}

Device = Literal["auto", "sim", "cpu", "gpu"] | None
Format = Literal["text", "markdown", "json"]
TextOrJson = Literal["text", "json"]
Names = list[str] | None
"""What a repeatable option or argument was given; None if it was not."""
Paths = list[Path] | None


@dataclass(frozen=True)
class Invocation:
    """Options of ``vllm-regress`` itself.

    ``pytest_args`` are the arguments after ``--``, for pytest; those of ``ask`` are a command.
    ``answers``: the command says what is known of something that others made.
    """

    cases_dir: Path | None
    pytest_args: tuple[str, ...]
    answers: bool = False
    verbose: bool = False
    yes: bool = False
    sources: tuple[str, ...] = ()
    wheel_index: str | None = None

    def run_options(self, device: str | None) -> RunOptions:
        """Return the options of a run of batches."""
        from ..runner.batch import RunOptions
        from ..runner.suite import refuse_paths

        refuse_paths(self.pytest_args)
        return RunOptions(device, None, self.pytest_args, self.cases_dir, self.verbose)

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

    def prepare(
        self, batches: Sequence[Batch], options: RunOptions, show: Say | None = None
    ) -> None:
        """Check the environments of a run on this machine, and confirm what it downloads."""
        from ..runner.executors import check_environments

        check_environments(batches, gpu=options.asks_for_gpu)
        self.confirm_downloads([batch.environment for batch in batches], show)

    def request_here(
        self, batches: Sequence[Batch], options: RunOptions, jobs: int | None, show: Say
    ) -> RunRequest:
        """Return the request to run batches on this machine, whose environments are checked."""
        from ..runner.executors import build_with_cache
        from ..runner.run import LocalMachine, local_request
        from ..runner.slots import Spare, machine_room, worker_room

        self.prepare(batches, options, show)
        spare = None if jobs else Spare.of_machine()
        at_once = jobs or machine_room()
        machine = LocalMachine(build_with_cache(show), at_once, spare, worker_room())
        return local_request(batches, machine, options, show)

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
        """Return the directory of cases: the one that was named, else that of the project, else the
        built-in one.

        A command that answers does not look into the project, which may be what it judges: one
        case there would replace everything that is known.
        """
        from ..cases.loading import default_cases_dir
        from ..util.paths import shipped

        if self.cases_dir is not None:
            return self.cases_dir
        if self.answers:
            return shipped("cases")
        directory = default_cases_dir()
        if directory != shipped("cases"):
            warn(f"cases: {directory}")
        return directory

    def database(self) -> str:
        """Return which cases an answer is from, for the reader of a pipeline's log."""
        count = len(self.loaded.cases)
        if self.cases_dir is not None:
            return f"{count} of {self.cases_dir}"
        return f"the {count} built-in ones of vllm-regress {__version__}"

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

    def select(self, case_ids: Names) -> tuple[Case, ...]:
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
        if problems and not valid_ids.issuperset(case_ids or ()):
            warn(f"invalid case files: {problems}")
            return select_cases(self.loaded.cases, case_ids or ())
        return select_cases(self.cases(), case_ids or ())

    def cases_if_any(self) -> tuple[Case, ...]:
        """Return the valid cases, or none if there is no directory of cases: result files can be
        read without them."""
        try:
            return self.cases()
        except UsageError:
            return ()


def disk_limit(text: str | None) -> int:
    """Return the limit given with ``--disk`` in bytes; without it that of the cache if the user has
    set one, else ``DISK``.

    Raises ``UsageError`` if it is not a size.
    """
    from ..environments.cache import limit_of_user

    limit = size_of(text or DISK)
    if limit is None:
        raise UsageError(f"--disk {format_value(text)}: allowed is a size such as {DISK}")
    return limit if text else limit_of_user() or limit


def make_executor(
    on: str | None, jobs: int | None, say: Say, progress: CaseLines | None = None
) -> Executor:
    """Return the executor that the options ask for: a cluster, or threads on this machine. Raises
    ``UsageError`` for options that contradict.

    ``progress`` shows what is built on this machine.
    """
    if on is None:
        from ..runner.executors import ThreadsExecutor, build_with_cache
        from ..runner.slots import machine_room

        build = build_with_cache(say)
        return ThreadsExecutor(
            progress.watching(build) if progress else build, jobs or machine_room(), say
        )
    from ..runner.ray_executor import RayExecutor

    if jobs is not None:
        raise UsageError(
            "--jobs and --on contradict each other: on a cluster, its free resources decide how many batches run side by side"
        )
    address, gpus = cluster_of(on)
    return RayExecutor(address, say, gpus)


def cluster_of(on: str) -> tuple[str, int | None]:
    """Return the address of a cluster and the GPUs for each environment, of ADDRESS[,gpus=N].

    Raises ``UsageError``.
    """
    address, comma, setting = on.partition(",")
    if not comma:
        return on, None
    name, _, number = setting.partition("=")
    if not address or name != "gpus" or not number.isdecimal() or not 0 < int(number) < 1000:
        raise UsageError(
            f"--on {format_value(on)}: allowed is ADDRESS[,gpus=N], such as ray,gpus=2"
        )
    return address, int(number)


def settings(given: Names) -> Iterator[tuple[str, str]]:
    """Yield names and values of words NAME=VALUE. Raises ``UsageError``."""
    for text in given or ():
        name, _, value = text.partition("=")
        if not name or "=" not in text:
            raise UsageError(f"{format_value(text)}: write NAME=VALUE")
        yield name, value


def values(given: Names) -> dict[str, Any]:
    """Return the values of words NAME=VALUE, which are JSON or else text. Raises ``UsageError``."""
    return {name: json_or_text(text) for name, text in settings(given)}


def limits(given: Names, **defaults: float) -> dict[str, float]:
    """Return the values of ``--limit NAME=VALUE``. Raises ``UsageError``."""
    values = dict(defaults)
    for name, value in settings(given):
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if name not in defaults or not 0 < number < 1e6:
            raise UsageError(
                f"--limit {name}={value}: allowed is NAME=VALUE, a number above 0 for "
                f"{', '.join(defaults)}"
            )
        values[name] = number
    return values


def warn_of(case: Case, cases: Sequence[Case]) -> None:
    """Print what may be wrong with a valid case."""
    from ..cases.proofs import lint

    for line in lint.lint_case(case, cases):
        warn(f"warning: {line}")


def batches_of_shard(
    batches: Sequence[Batch], shard: str | None, files: OutputFiles
) -> Sequence[Batch]:
    """Return the batches of a shard, after a check that the results can be written.

    Ends the command successfully if there are none, with the result file that ``report`` looks for.
    """
    from ..runner.shards import take_shard

    batches = take_shard(batches, shard)
    if not batches and shard is not None:
        from ..cases.results import RunResult

        say(f"shard {shard} has nothing to do")
        files.save(RunResult(), tuple, say)
        raise typer.Exit(OK)
    files.check_results()
    return batches


def cluster(on: str | None) -> contextlib.AbstractContextManager[None]:
    """Keep one connection to the cluster, if one was named, while a command uses it."""
    if on is None:
        return contextlib.nullcontext()
    from ..runner.ray_cluster import connected

    return connected(cluster_of(on)[0])


def speaker(format: str) -> Say:
    """Return what says what a command does: on standard error if standard output is a document."""
    return say if format == "text" else warn


def print_report(format: str, report: Report, document: object) -> None:
    """Print a report as text or Markdown, or the document that is the same in JSON."""
    from ..util.report import to_markdown, to_terminal

    if format == "json":
        print_json(document)
    else:
        say((to_markdown if format == "markdown" else to_terminal)(report).rstrip())


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


def print_unmasked(document: Mapping[str, str]) -> None:
    """Print a line of JSON for a program that needs the key in it."""
    print(json.dumps(document), flush=True)


def print_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their titles, one line each, with columns as wide as their widest cell."""
    from ..util.report import columns

    print("\n".join(columns(titles, rows)))


def print_text(template: str, **values: Any) -> None:
    """Print a text from a template. ``field(NAME, TEXT)`` in it is a named text below a heading."""
    say(render_text(template, field=field, **values).rstrip("\n"))


def field(name: str, text: str) -> str:
    """Return a named text, wrapped where it is read on a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    head = f"  {name + ':':13}"
    return textwrap.fill(
        text,
        max(width, 40),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def say(*lines: str) -> None:
    """Print lines of output at once."""
    for line in lines:
        print(printable(mask(line)), flush=True)


def warn(line: str) -> None:
    """Print a line for the user on standard error."""
    with contextlib.suppress(OSError):  # a full disk: there is no other place to say so
        print(printable(mask(line)), file=sys.stderr, flush=True)


def print_log(log: str) -> None:
    """Print the masked log of a process on standard error: as it is for a program that reads it, and
    without what could control a terminal."""
    text = printable_output(log) if sys.stderr.isatty() else log
    with contextlib.suppress(OSError):  # a full disk, or nobody reads it any more
        print(text, file=sys.stderr, flush=True)
