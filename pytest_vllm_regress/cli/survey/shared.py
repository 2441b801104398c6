"""Options and output that all surveys share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from ...runner.batch import digest
from ...util.paths import writable_root
from ...util.report import Report, to_markdown, to_terminal
from ...util.store import Store
from ..context import FORMAT, complete_environments, print_json, say

T = TypeVar("T")
Format = Annotated[Literal["text", "markdown", "json"], FORMAT]
Environments = Annotated[
    list[str],
    typer.Option(
        "--env",
        metavar="NAME|PATH",
        help="Environment or interpreter; repeatable.",
        autocompletion=complete_environments,
    ),
]


@contextlib.contextmanager
def resumed(
    opened: Callable[..., Store[T]], command: Collection[str], *, fresh: bool
) -> Iterator[Store[T]]:
    """Return what the same command has measured so far. ``command``: what tells it from others."""
    name = f"{opened.__name__}-{digest(*command)[:16]}.jsonl"
    with contextlib.closing(opened(Path(writable_root(), "surveys", name), fresh=fresh)) as store:
        store.lock()
        yield store


def show(report: Report, document: object, form: str) -> None:
    """Print the results in the format that was asked for. ``document``: for JSON."""
    if form == "json":
        print_json(document)
    else:
        for line in (to_markdown if form == "markdown" else to_terminal)(report).splitlines():
            say(line)
