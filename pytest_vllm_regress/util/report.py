"""A report as a value (sections, tables, notes), and how it looks as Markdown and on a terminal.

Commands and surveys build a ``Report``; nobody else joins table cells. Texts are untrusted unless
they are ``Markup``: in Markdown they become code where they could have an effect.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

from .masking import masker
from .text import markdown_cell, markdown_inline, one_line, printable


class Markup(str):
    """Text that is Markdown already, for example a link. A terminal shows it as it is."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows below a header. Each row has as many cells as the header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Section:
    """Paragraphs, lists (a tuple of lines) and tables, in their order, below an optional title."""

    title: str = ""
    parts: Sequence[str | tuple[str, ...] | Table] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """What a command has to say, for people. ``notes`` stand at the end, each a paragraph."""

    title: str = ""
    sections: Sequence[Section] = ()
    notes: Sequence[str] = ()


def to_markdown(report: Report) -> str:
    """Return GitHub-flavoured Markdown that ends with a newline."""
    blocks = [f"# {_inline(report.title)}"] if report.title else []
    for section in report.sections:
        if section.title:
            blocks.append(f"## {_inline(section.title)}")
        blocks += map(_markdown_part, section.parts)
    blocks += map(_inline, report.notes)
    return "\n\n".join(blocks) + "\n"


def to_terminal(report: Report) -> str:
    """Return plain text with aligned columns. Secrets are masked, control characters escaped."""
    blocks = [_line(report.title)] if report.title else []
    for section in report.sections:
        parts = list(map(_terminal_part, section.parts))
        title = f"{_line(section.title)}:" if section.title else ""
        if title and parts and not isinstance(section.parts[0], str):
            parts[0] = f"{title}\n{parts[0]}"  # it is the title of this list or table
        elif title:
            parts.insert(0, title)
        blocks += parts
    return "\n\n".join([*blocks, *map(_line, report.notes)]) + "\n"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [
        f"| {' | '.join(map(_cell, header))} |",
        "|" + " --- |" * len(header),
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
    ]


def columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table for a terminal, each column as wide as its widest cell."""
    hide = functools.cache(masker())
    cells = [[one_line(hide(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _markdown_part(part: str | tuple[str, ...] | Table) -> str:
    if isinstance(part, Table):
        return "\n".join(markdown_table(part.header, part.rows))
    if isinstance(part, tuple):
        return "\n".join(f"- {_inline(line)}" for line in part)
    return _inline(part)


def _terminal_part(part: str | tuple[str, ...] | Table) -> str:
    if isinstance(part, Table):
        return "\n".join(columns(part.header, part.rows))
    if isinstance(part, tuple):
        return "\n".join(f"  {_line(line)}" for line in part)
    return _line(part)


def _inline(text: str) -> str:
    return text if isinstance(text, Markup) else markdown_inline(text)


def _cell(text: str) -> str:
    return text if isinstance(text, Markup) else markdown_cell(text)


def _line(text: str) -> str:
    return printable(masker()(text))
