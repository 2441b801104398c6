"""Rendering of HTML; what pages show, as values; and folders of pages: writing one, and checking its
links.

The values are the overview (rows of cases, columns of environments or releases), and the cells with
a text for an upstream report. What a verdict is called, and what it means, is in
``data/page/parts.html``.

Why is a page safe? A page loads nothing: style and script are inside, and the content security policy allows no other
script. Texts come from result files, case files and documents and are not trusted: templates escape
them, and each text is truncated and its control characters are shown as escapes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import posixpath
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..._version import __version__
from ...answers.audit.matching import Severity, severity
from ...cases.model import Case
from ...cases.proofs.proof import recorded_versions
from ...cases.results import Cell, TestResult
from ...cases.verdict import Verdict, excerpt
from ...errors import UsageError
from ...util.codec import decode
from ...util.documents import parse_json
from ...util.files import read_below, remove_below, replace_below
from ...util.paths import DATA
from ...util.text import printable, render_text, templates

MAX_TEXT = 20_000
MAX_LINE = 400
LIST = ".vllm-regress-pages.json"
"""The names of a folder's files and the hashes of their contents are kept in it, so that the next
time pages are replaced, those that are gone are removed, and nothing else.

The folder may come from somebody else, with a list of theirs. So a name in it is never enough: only
a file whose content is the recorded one, and that no link leads to, is touched.
"""
_MAX_LIST = 4 * 1024 * 1024
_MAX_PAGE = 256 * 1024 * 1024
_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,80}")


def render(template: str, **values: Any) -> str:
    """Return a page from a template in ``data/page``."""
    html: str = _templates().get_template(template).render(**values)
    return html


def shown(text: str, limit: int = MAX_LINE) -> str:
    """Escape control and direction characters, and truncate."""
    if len(text) > limit:
        text = f"{text[: limit - 40]} ... {len(text) - limit + 40} characters omitted"
    return printable(text)


def file_name(name: str) -> str:
    """Return a name for a page's file, also as the anchor of a place in a page:

    ``name`` itself, or a hash of it if it is not a safe one.
    """
    if _SAFE_NAME.fullmatch(name):
        return name
    return "_" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def place_of(environment: str, device: str) -> str:
    """Return the anchor of an environment and a device on a case's page."""
    return file_name(f"{environment}.{device}")


def case_page(case_id: str) -> str:
    """Return the path of a case's page."""
    return f"cases/{file_name(case_id)}.html"


def date_text(now: float | None = None, form: str = "%Y-%m-%d %H:%M UTC") -> str:
    """Return the date and minute of ``now``, in seconds since the epoch."""
    return time.strftime(form, time.gmtime(now))


IN_RANGE = "IN_RANGE"
"""What a mark shows in place of a verdict where only the affected range is known."""


@dataclass(frozen=True)
class Mark:
    """A verdict in a cell and where it leads.

    ``note``: the environment, where one column holds the marks of all.
    ``also``: the other devices' marks, where one stands for all. ``disputed``: whether the failure
    shows on one of them and not on another.
    """

    verdict: str
    href: str
    expected: bool = True
    device: str = ""
    note: str = ""
    also: Sequence[Mark] = ()
    disputed: bool = False

    @property
    def anchor(self) -> str:
        """The place in the page that the mark leads to."""
        return self.href.partition("#")[2]


@dataclass(frozen=True)
class Column:
    """A column: its name, and the page of the environment or release (may be empty)."""

    name: str
    href: str = ""


@dataclass(frozen=True)
class Row:
    """A case (None if only its id is known), and the marks in each column (one for each device)."""

    case_id: str
    case: Case | None
    href: str
    cells: Sequence[Sequence[Mark]]

    @property
    def severity(self) -> Severity | None:
        return severity(self.case) if self.case else None

    @property
    def unexpected(self) -> bool:
        return any(not mark.expected for mark in self.marks)

    @property
    def marks(self) -> list[Mark]:
        return [mark for cell in self.cells for mark in _each(cell)]


@dataclass(frozen=True)
class Grid:
    """The table of an overview."""

    columns: Sequence[Column]
    rows: Sequence[Row]

    @classmethod
    def unexpected_first(cls, columns: Sequence[Column], rows: Iterable[Row]) -> Grid:
        """Return the table that begins with the rows with something unexpected."""
        return cls(columns, sorted(rows, key=lambda row: not row.unexpected))

    @property
    def marks(self) -> list[Mark]:
        return [mark for row in self.rows for mark in row.marks]

    def counted(self, attribute: str) -> dict[str, int]:
        """Return the number of cells by verdict or device, the most frequent first."""
        values = filter(None, (getattr(mark, attribute) for mark in self.marks))
        return dict(Counter(values).most_common())

    def verdicts_of_runs(self) -> int:
        """Return the number of cells that a run decided."""
        return sum(mark.verdict != IN_RANGE for mark in self.marks)

    def undecided(self) -> int:
        """Return the number of cells in which no test could show the failure."""
        return sum(mark.verdict == Verdict.NOT_APPLICABLE.value for mark in self.marks)

    def unexpected(self) -> list[tuple[str, str, str]]:
        """Return verdict, place and address of each cell that is not as expected."""
        return [
            (mark.verdict, f"{row.case_id} in {mark.note or column.name}", mark.href)
            for row in self.rows
            for column, cell in zip(self.columns, row.cells, strict=True)
            for mark in _each(cell)
            if not mark.expected
        ]


def _each(cell: Iterable[Mark]) -> Iterable[Mark]:
    for mark in cell:
        yield from (mark, *mark.also)


@dataclass(frozen=True)
class ShownCell:
    """A cell of the table with its results, and its place on the page."""

    cell: Cell
    case: Case | None
    tool: str
    """Version of the plugin that ran the tests."""
    anchor: str
    environment_href: str = ""

    @property
    def issue(self) -> str:
        """The text of an upstream report, in the sections of vLLM's bug form, with the versions of
        the packages that matter."""
        cell = self.cell
        worst = next((r for r in cell.results if r.verdict is cell.verdict), cell.results[0])
        return render_text(
            "upstream.md.txt",
            cell=cell,
            case=self.case,
            tool=self.tool,
            worst=worst,
            versions=recorded_versions(worst.versions, self.case),
            shown=shown,
            excerpt=excerpt,
        )


def write_folder(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write the files below ``folder``, and remove those of an earlier time. No link is followed.

    Raises ``UsageError``, before anything is written, for a folder that is a link, has files of
    others where pages would be, or other files and no pages of ours; and if writing fails.
    """
    if folder.is_symlink():
        raise UsageError(f"{folder}: a symbolic link. Name the folder that it means")
    before = _written_before(folder)
    contents = {
        name: text.encode() if isinstance(text, str) else text for name, text in files.items()
    }
    unchanged = {name for name in {*contents, *before} if _is_unchanged(folder, name, before)}
    for name in contents.keys() - unchanged:
        if os.path.lexists(folder / name):
            raise _other_files(folder, name)
    folder.mkdir(parents=True, exist_ok=True)
    hashes = {name: [hashlib.sha256(content).hexdigest()] for name, content in contents.items()}
    either = {name: before.get(name, []) + hashes.get(name, []) for name in {*before, *hashes}}
    _write_list(folder, either)  # an interrupted run is continued by the next one
    for name, content in contents.items():
        replace_below(folder, name, content)
    for name in unchanged - contents.keys():
        remove_below(folder, name)
    _write_list(folder, hashes)


def _write_list(folder: Path, hashes: Mapping[str, Sequence[str]]) -> None:
    text = json.dumps(hashes, indent=0, sort_keys=True) + "\n"
    replace_below(folder, LIST, text.encode())


def _written_before(folder: Path) -> dict[str, list[str]]:
    """Return the possible hashes of each file that an earlier run wrote, by name."""
    content = read_below(folder, LIST, _MAX_LIST) if folder.is_dir() else None
    if content is None:
        if folder.is_dir() and any(folder.iterdir()):
            raise _other_files(folder)
        return {}
    try:
        document = parse_json(content)
    except ValueError:
        raise _other_files(folder, LIST) from None
    return decode(dict[str, list[str]], document, folder / LIST)


def _is_unchanged(folder: Path, name: str, hashes: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the file has the content that an earlier run wrote."""
    content = read_below(folder, name, _MAX_PAGE) if folder.is_dir() else None
    return content is not None and hashlib.sha256(content).hexdigest() in hashes.get(name, ())


def _other_files(folder: Path, name: str = "") -> UsageError:
    return UsageError(
        f"{folder}: has other files{name and f' ({shown(name)})'}, which pages could overwrite. "
        "Choose a new or an empty folder"
    )


@dataclass(frozen=True)
class BrokenLink:
    """A link of a page that leads nowhere."""

    page: str
    link: str
    reason: str

    def __str__(self) -> str:
        return shown(f"{self.page}: {self.link}: {self.reason}")


def links_of(html: str) -> Iterable[str]:
    """Return the relative links of a page or of a part of one."""
    return _PageLinks(html).links


def broken_links(files: Mapping[str, str | bytes], beside: str = "") -> list[BrokenLink]:
    """Return the links of the pages among ``files`` that lead nowhere.

    ``files``: content by path. ``beside``: the path of another file that exists.
    """
    pages = {
        name: _PageLinks(content)
        for name, content in files.items()
        if name.endswith(".html") and isinstance(content, str)
    }
    broken = []
    for name, page in pages.items():
        for link in page.links:
            path, _, anchor = unquote(link).partition("#")
            folder = posixpath.dirname(name)
            target = posixpath.normpath(posixpath.join(folder, path)) if path else name
            if target == beside:
                continue
            if target not in files:
                broken.append(BrokenLink(name, link, "no such page"))
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(BrokenLink(name, link, "no such place in that page"))
    return broken


class _PageLinks(HTMLParser):
    """The anchors and relative links of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: dict[str, None] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name == "id":
                self.anchors.add(value)
            elif value and name in ("href", "src") and not value.startswith(_ABSOLUTE):
                self.links[value] = None


_ABSOLUTE = ("https://", "http://", "mailto:")


def versions_of(results: Iterable[TestResult]) -> list[tuple[str, str]]:
    """Return the distributions of an environment, by name."""
    return sorted({name: v for result in results for name, v in result.versions.items()}.items())


def _link_name(url: str) -> str:
    """Return a short text for an upstream link: ``vllm#17173``."""
    parts = url.rstrip("/").split("/")
    return f"{parts[-3]}#{parts[-1]}" if parts[-1].isdigit() and len(parts) > 3 else parts[-1][:40]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _digest(content: str) -> str:
    """Return the hash by which a policy allows an inline script or style.

    The template adds a line break on both sides.
    """
    return "sha256-" + base64.b64encode(hashlib.sha256(f"\n{content}\n".encode()).digest()).decode()


def _without_control_characters(value: object) -> object:
    """Return what a template prints: a text of any origin, unless it is HTML already."""
    return shown(value, MAX_TEXT) if type(value) is str else value


@functools.cache
def _templates() -> Any:
    folder = DATA / "page"
    environment = templates(folder, autoescape=True, finalize=_without_control_characters)
    environment.filters |= {
        "shown": shown,
        "severity": severity,
        "versions": versions_of,
        "link_name": _link_name,
        "duration": _duration,
        "date": date_text,
        "total": Counter.total,
    }
    style, script = (
        (folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    environment.globals.update(
        style=style,
        script=script,
        place_of=place_of,
        case_page=case_page,
        severities=tuple(Severity),
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
        version=__version__,
        nav=(),
        search="",
        images=False,
    )
    return environment
