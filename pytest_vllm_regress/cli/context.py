"""What every command of ``vllm-regress`` shares: options of the whole command, exit codes, printing. Command modules import this, not ``cli``.

Here alone is printed, and only text: nothing of a file, a name or an error steers the terminal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..defaults import ASKED_DEVICES
from ..errors import UsageError
from ..util.masking import mask, masker
from ..util.text import one_line, printable
from ..util.validation import shown

if TYPE_CHECKING:
    from ..cases.model import Case
    from ..runner.carrier import Carrier
    from ..runner.runner import Say

OK, UNEXPECTED, USAGE, UNBUILT, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 4, 130
HELP = {"help_option_names": ["-h", "--help"]}
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Download without asking. Without a terminal nothing is asked.")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, help="Environments at a time (default: by cores and memory).")
]
Shard = Annotated[
    str | None,
    typer.Option("--shard", metavar="K/N", help="Only part K of N, divided by recorded durations; `report` merges."),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ray|ray://HOST|HOST:PORT",
        help="Run the cells on that Ray cluster (ray: RAY_ADDRESS, else the one on this machine).",
    ),
]
GpusEach = Annotated[
    int | None,
    typer.Option("--gpus", min=1, metavar="N", help="With --on and GPUs: how many an environment gets (default 1)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CaseIds = Annotated[list[str] | None, typer.Argument(metavar="CASE", help="Ids of cases (default: all).")]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", help=f"{', '.join(ASKED_DEVICES)}: for all environments (default: each environment's own)."
    ),
]
Results = Annotated[
    Path | None, typer.Option("--results", metavar="DIR|FILE.json", help="Write the results there as JSON.")
]


def _use_sources(given: list[str] | None) -> list[str] | None:
    if given:
        from ..environments.sources import use

        use(given)
    return given


def _use_wheels(index: str | None) -> str | None:
    if index:
        from ..environments.sources import use_wheels

        use_wheels(index)
    return index


WheelIndex = Annotated[
    str | None,
    typer.Option(
        "--wheel-index",
        metavar="URL",
        help="A package index with {commit} in its address: vllm@REV is then the commit's own wheel, for every device.",
        callback=_use_wheels,
    ),
]
"""As ``Source``."""
Source = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="[PACKAGE=]PATH|URL",
        help="The clone that names with @REV mean (default package: vllm); a URL is cloned once, into the cache.",
        callback=_use_sources,
    ),
]
"""An option of every command that takes environments: it works by being there."""


@dataclasses.dataclass(frozen=True)
class Invocation:
    """Options of the whole command. ``pytest_args`` is what stood after ``--``."""

    cases_dir: Path | None
    pytest_args: tuple[str, ...]

    def command(self, name: str, *arguments: str) -> str:
        """A command that may be copied: ours, with the directory of cases where one was given."""
        given = ["--cases", str(self.cases_dir)] if self.cases_dir else []
        return shlex.join(["vllm-regress", *given, name, *arguments])

    def directory(self) -> Path:
        from ..cases.model import default_cases_dir
        from ..util.paths import shipped

        if self.cases_dir is not None:
            return self.cases_dir
        found = default_cases_dir()
        if found != shipped("cases"):
            warn(f"cases: {found}")
        return found

    def cases(self) -> tuple[Case, ...]:
        from ..cases.model import find_cases

        return find_cases(self.directory())

    def cases_if_any(self) -> tuple[Case, ...]:
        """The cases, or none where there is no directory of cases: result files are readable without them."""
        try:
            return self.cases()
        except UsageError:
            return ()


def releases_of(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """What the cases say of each release that has a lock, for the page; nothing where there are no cases."""
    from ..audit.releases import overview
    from ..environments.recipes import find_file, load

    return [each.to_json() for each in overview(cases, load(find_file()).locks)] if cases else []


def invocation(context: typer.Context) -> Invocation:
    """The options of the command that a subcommand belongs to."""
    found = context.obj
    assert isinstance(found, Invocation)
    return found


def check_device(device: str | None) -> None:
    """Raise ``UsageError`` for a --device there is not."""
    if device is not None and device not in ASKED_DEVICES:
        raise UsageError(f"--device {shown(device)}: allowed are {', '.join(ASKED_DEVICES)}")


def confirm_downloads(environments: Sequence[str], *, yes: bool) -> None:
    """Say what must be downloaded for these environments, and ask whether to, where somebody is there to answer and has not said ``yes``."""
    from ..environments.downloads import downloads

    wanted = downloads(environments)
    if wanted is None:
        return
    say(str(wanted))
    if yes or not on_a_terminal():
        return
    if not typer.confirm("Go on?", default=True):
        warn("nothing was downloaded or run")
        raise typer.Exit(INTERRUPTED)


def end_if_idle(jobs: Sequence[object], shard: str | None, destination: Path | None) -> None:
    """A shard that has nothing to do ends well, with the result file that ``report`` looks for."""
    if not jobs and shard is not None:
        from ..cases.results import RunResult
        from ..runner.runner import keep
        from ..util.paths import writable_root

        say(f"shard {shard} has nothing to do")
        keep(RunResult(), destination, writable_root() / "results", say)
        raise typer.Exit(OK)


def carrier(on: str | None, gpus: int | None, jobs: int | None, tell: Say) -> Carrier:
    """What runs the jobs: the cluster that was named, else this machine's threads. Raises ``UsageError`` for what does not go together."""
    from ..runner.carrier import LocalThreads
    from ..runner.runner import build_with_cache
    from ..runner.slots import machine_room

    if on is None:
        check_gpus(gpus)
        return LocalThreads(build_with_cache(tell), jobs or machine_room(), tell)
    from ..runner.on_ray.carrier import RayCarrier

    if jobs is not None:
        raise UsageError("--jobs and --on contradict each other: how much runs at a time is the cluster's to say")
    return RayCarrier(on, tell, gpus)


def check_gpus(gpus: int | None) -> None:
    """Raise ``UsageError`` for --gpus without --on."""
    if gpus is not None:
        raise UsageError("--gpus goes with --on: here GPUs are leased as tests ask for them")


@contextlib.contextmanager
def cluster(on: str | None) -> Iterator[None]:
    """One connection for all that a command asks of the cluster; nothing where none was named."""
    if on is None:
        yield
    else:
        from ..runner.on_ray.cluster import connected

        with connected(on):
            yield


def on_a_terminal() -> bool:
    """Somebody reads what we say and can answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def print_json(value: object) -> None:
    """JSON, in ASCII: what it holds is data, and steers no terminal. Secrets are hidden, value by value: it stays JSON."""
    from ..cases.results import masked

    print(json.dumps(masked(value, masker()), indent=2).replace("\x7f", "\\u007f"))


def print_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows below their titles, each column as wide as its widest cell; each row is one line."""
    hide = masker()
    cells = [[one_line(hide(cell)) for cell in row] for row in (titles, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
    for row in cells:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def say(line: str) -> None:
    """A line of progress, or of an answer, shown at once."""
    print(printable(mask(line)), flush=True)


def warn(line: str) -> None:
    """A line for the person, apart from the output."""
    print(printable(mask(line)), file=sys.stderr, flush=True)
