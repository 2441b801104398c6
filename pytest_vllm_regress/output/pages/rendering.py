"""Rendering of HTML, and folders of pages: writing one, and checking its links.

Why is a page safe? A page loads nothing: style and script are inside, and the content security policy allows no other
script. Texts come from result files, case files and documents and are not trusted: templates escape
them, and each text is truncated and its control characters are shown as escapes.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import posixpath
import re
import time
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..._version import __version__
from ...answers.audit.severity import severity
from ...cases.results import TestResult
from ...errors import UsageError
from ...util.codec import load
from ...util.files import parts_below, write_atomically
from ...util.paths import DATA
from ...util.text import printable, templates

MAX_TEXT = 20_000
MAX_LINE = 400
LIST = ".vllm-regress-pages.json"
"""The names of a folder's files are kept in it, so that the next time pages that are gone are
removed, and nothing else."""
_MAX_LIST = 4 * 1024 * 1024
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


def write_folder(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write the files below ``folder``, and remove those of an earlier time.

    Raises ``UsageError`` for a folder that has other files and no pages of ours, and if writing
    fails.
    """
    before = _written_before(folder)
    for name, content in files.items():
        write_atomically(folder.joinpath(*parts_below(name)), content, sync=False)
    for name in before - set(files):
        with contextlib.suppress(OSError):
            folder.joinpath(*parts_below(name)).unlink()
    write_atomically(folder / LIST, json.dumps(sorted(files), indent=0) + "\n")


def _written_before(folder: Path) -> set[str]:
    if not (folder / LIST).is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise UsageError(
                f"{folder}: has other files, which pages could overwrite. Choose a new or an empty "
                "folder"
            )
        return set()
    return set(load(list[str], folder / LIST, _MAX_LIST, what="a list of pages"))


def broken_links(files: Mapping[str, str | bytes]) -> list[str]:
    """Return a line for each link of the pages among ``files`` that leads nowhere.

    ``files``: content by path.
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
            if target not in files:
                broken.append(f"{name}: {link}: no such page")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{name}: {link}: no such place in that page")
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
    }
    style, script = (
        (folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    environment.globals.update(
        style=style,
        script=script,
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
        version=__version__,
        nav=(),
        images=False,
    )
    return environment
