"""Checking the links of a folder of pages: each leads to a page of the folder, and to a place in
it."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from html.parser import HTMLParser
from urllib.parse import unquote


class _Page(HTMLParser):
    """The anchors and relative links of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: dict[str, None] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif (
                name in ("href", "src")
                and value
                and not value.startswith(("https://", "http://", "mailto:"))
            ):
                self.links[value] = None


def broken_links(files: Mapping[str, str | bytes]) -> list[str]:
    """Return a line for each link of the pages among ``files`` that leads nowhere.

    ``files``: content by path.
    """
    pages = {
        name: _Page(content)
        for name, content in files.items()
        if name.endswith(".html") and isinstance(content, str)
    }
    broken = []
    for name, page in pages.items():
        for link in page.links:
            path, _, anchor = unquote(link).partition("#")
            target = (
                posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            )
            if target not in files:
                broken.append(f"{name}: {link}: no such page")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{name}: {link}: no such place in that page")
    return broken
