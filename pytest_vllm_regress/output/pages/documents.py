"""The project's documents as pages:

Markdown rendered without raw HTML, and relative links that lead to pages or copied files.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from ...errors import UsageError
from ...util.files import read_bounded
from ...util.text import printable
from .rendering import render

MAX_DOCUMENT = 4 * 1024 * 1024
_ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
_PARSER = MarkdownIt("commonmark", {"html": False}).enable("table")


@dataclass(frozen=True)
class Sources:
    """Where relative links lead. ``pages``: the page of each document or folder, by its path below
    ``root``.

    ``complete``: other files are copied, and a link that leads nowhere stays. Otherwise such links
    are left out.
    """

    root: Path
    pages: Mapping[str, str]
    complete: bool = True


@dataclass(frozen=True)
class RenderedDocument:
    """A rendered document. ``files``: the files that it links to, by path."""

    title: str
    html: Markup
    files: Mapping[str, bytes]


def documents_of(root: Path) -> dict[str, str]:
    """Return the path of the page of each document of the project, by the document's path."""
    paths = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    names = sorted(path.relative_to(root).as_posix() for path in paths)
    return {
        name: "docs/index.html" if name == "docs/README.md" else f"{name.removesuffix('.md')}.html"
        for name in names
    }


def render_document(sources: Sources, name: str, page: str) -> RenderedDocument:
    """Return the document at ``name``, for the page at the path ``page``.

    Raises ``UsageError`` for a symbolic link that leads out of the root.
    """
    path = sources.root / name
    if not _is_inside(path, sources.root):
        raise UsageError(
            f"{path}: a symbolic link that leads out of {sources.root}. Replace it by the document"
        )
    text = printable(read_bounded(path, MAX_DOCUMENT, what="a document").decode("utf-8", "replace"))
    tokens = _PARSER.parse(text)
    files: dict[str, bytes] = {}
    anchors: dict[str, int] = {}
    title = ""
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        _move_alignment(token)
        if token.type == "heading_open" and following is not None:
            heading = "".join(child.content for child in following.children or ())
            title = title or heading
            token.attrSet("id", _anchor(heading, anchors))
        for child in token.children or ():
            if attribute := {"link_open": "href", "image": "src"}.get(child.type):
                address = str(child.attrs.pop(attribute, ""))
                if _ABSOLUTE.match(address):
                    child.attrSet("rel", "noopener noreferrer")
                elif not address.startswith("#"):
                    address = _target(sources, name, page, address, files)
                if address:
                    child.attrs = {attribute: address, **child.attrs}
    html = Markup(_PARSER.renderer.render(tokens, _PARSER.options, {}))
    return RenderedDocument(title or name, html, files)


def page_of_markdown(title: str, text: str) -> str:
    """Return a page of one Markdown document that leads nowhere."""
    tokens = _PARSER.parse(text)
    for token in tokens:
        _move_alignment(token)
    content = Markup(_PARSER.renderer.render(tokens, _PARSER.options, {}))
    return render("document.html", title=title, content=content)


def _is_inside(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a link to itself
        return False


def _target(sources: Sources, name: str, page: str, address: str, files: dict[str, bytes]) -> str:
    """Return the address of a relative link from the page; empty for a folder that has no page, and
    for what is missing. Add to ``files`` what it needs."""
    path, _, anchor = address.partition("#")
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    target = sources.pages.get(place)
    if target is None:
        if not sources.complete:
            return ""
        file = sources.root / place
        if not _is_inside(file, sources.root) or not os.path.exists(file):
            return address  # ``broken_links`` reports it
        if file.is_dir():
            return ""
        files[place] = read_bounded(file, MAX_DOCUMENT, what="a file of the project")
        target = place
    relative = posixpath.relpath(target, posixpath.dirname(page) or ".")
    return relative + (f"#{anchor}" if anchor else "")


def _anchor(heading: str, taken: dict[str, int]) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    count = taken.get(name, 0)
    taken[name] = count + 1
    return f"{name}-{count}" if count else name


def _move_alignment(token: Token) -> None:
    """Replace the style of a table's cell, which the content security policy forbids, by a class."""
    style = str(token.attrs.pop("style", ""))
    if style.startswith("text-align:"):
        token.attrSet("class", style.removeprefix("text-align:"))
