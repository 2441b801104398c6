"""``vllm-regress explain``: which documented failures a log shows."""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from ..errors import UsageError
from ..util.files import expand_home
from ..util.text import one_line
from .context import HELP, OK, UNEXPECTED, AsJson, invocation, print_json, say, warn

if TYPE_CHECKING:
    from ..answers.explain.explanation import Explanation, LogMatch
    from ..answers.explain.unknown import UnknownFailure

SCHEMA_VERSION = 1
EPILOG = "Exit codes: 0 no documented failure; 1 a documented failure; 2 usage or bad input; 4 internal error."
MAX_SHOWN = 300
_LOOKED_AT = 4096
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gzip -cd"),
    b"BZh": ("bzip2", "bzip2 -cd"),
    b"\xfd7zXZ\0": ("xz", "xz -cd"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -cd"),
}
"""Compression formats by the first bytes of a file: name, and the command that decompresses it."""
app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(epilog=EPILOG)
def explain(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-",
            help="A log, a traceback, a dossier, or the output of pytest or a CI job.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Say which documented failures a log shows, on which lines, and what to do.

    Reads the log and runs nothing.
    """
    from ..answers.explain.log import explain as explain_log

    cases = invocation(context).cases()
    with _opened(file) as stream:
        explanation = explain_log(stream, cases, "standard input" if file == "-" else file)
    if as_json:
        print_json({"schema": SCHEMA_VERSION, **explanation.to_json()})
    else:
        _print(explanation)
    for note in explanation.notes:
        warn(f"note: {note}")
    raise typer.Exit(UNEXPECTED if explanation.findings else OK)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        _check(sys.stdin.buffer, "standard input")
        yield sys.stdin.buffer
        return
    path = expand_home(file)
    if path.exists() and not path.is_file():
        raise UsageError(
            f"{file}: not a regular file. Give a log, or - for standard input: COMMAND | vllm-regress explain -"
        )
    if not path.is_file():
        raise UsageError(f"{file}: no such file. Give a log, or - for standard input")
    try:
        with path.open("rb") as stream:
            _check(stream, file)
            yield stream
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None


def _check(stream: BinaryIO, source: str) -> None:
    """Warn about an empty log. Raises ``UsageError`` for UTF-16, compressed and binary files."""
    if not isinstance(stream, io.BufferedReader):
        return
    beginning = stream.peek(_LOOKED_AT)[:_LOOKED_AT]
    if not beginning:
        warn(f"note: {source} is empty")
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{source}: is in UTF-16. Convert it first: iconv -f UTF-16 -t UTF-8")
    for start, (name, command) in _COMPRESSED.items():
        if beginning.startswith(start):
            raise UsageError(
                f"{source}: is compressed by {name}. Unpack it first: {command} LOG | vllm-regress explain -"
            )
    if b"\0" in beginning:
        raise UsageError(f"{source}: is not text: it contains NUL bytes")


def _print(explanation: Explanation) -> None:
    named = ", ".join(
        f"{named.package} {named.version} (line {named.number})"
        for named in explanation.versions[:10]
    )
    say(f"{one_line(explanation.source)}: {named or 'names no version'}")
    count = len(explanation.findings)
    say(f"{count or 'no'} documented failure{'' if count == 1 else 's'}")
    for finding in explanation.findings:
        _print_finding(finding)
    if explanation.unknown:
        say("\nNot documented:")
    for failure in explanation.unknown:
        _print_unknown(failure)


def _print_finding(finding: LogMatch) -> None:
    case = finding.case
    say(f"\n{case.id}: {case.title}")
    _field("certainty", f"{finding.certainty}: {finding.reason}")
    more = (
        f" and {finding.count - len(finding.lines)} more"
        if finding.count > len(finding.lines)
        else ""
    )
    _field("lines", f"{', '.join(map(str, finding.lines))}{more}")
    _field("text", finding.text)
    if finding.alternatives:
        _field("or it is", f"{', '.join(finding.alternatives)}, with the same text")
    _field("affected", case.affected_text())
    _field("first fixed", case.first_fixed() or "no fixed version is known")
    _field("workaround", case.workaround or "none known")
    _field("upstream", " ".join(dict.fromkeys((*case.upstream, *case.fixed_by))))


def _print_unknown(failure: UnknownFailure) -> None:
    signature = failure.signature
    times = f" ({failure.count} times)" if failure.count > 1 else ""
    say(
        f"\nline {failure.line}{times}: {one_line(signature.exception)}: {one_line(failure.message[:MAX_SHOWN])}"
    )
    _field("phase", signature.phase)
    _field("raised in", " < ".join(signature.frames))
    _field("search for", failure.search_text)
    _field("new case", failure.command())


def _field(name: str, text: str) -> None:
    shortened = text if len(text) <= 3 * MAX_SHOWN else f"{text[: 3 * MAX_SHOWN]}..."
    say(f"  {name + ':':13}{one_line(shortened)}")
