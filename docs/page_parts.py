"""Parts of generated pages, which lie between ``<!-- generated:

NAME -->`` and ``<!-- end -->``, and cells of their tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping


def replace_parts(page: str, parts: Mapping[str, Callable[[], Iterable[str]]]) -> str:
    """Return the page with the new lines of each part.

    Raises ``SystemExit`` unless the page has each part exactly once.
    """
    for name, rows in parts.items():
        text = "\n".join(rows())
        part = f"<!-- generated: {name} -->\n{text}\n<!-- end -->".replace("\\", r"\\")
        page, count = re.subn(
            f"<!-- generated: {name} -->\n.*?<!-- end -->", part, page, flags=re.DOTALL
        )
        if count != 1:
            raise SystemExit(f"the page has {count} parts `generated: {name}`, expected one")
    return page


def code(text: str, limit: int = 150) -> str:
    """Return text as code in a cell of a Markdown table."""
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    plain = short.replace("\\", "\\\\").replace("\n", "\\n").replace("|", "\\|")
    fence = "``" if "`" in plain else "`"
    pad = " " if "`" in plain else ""
    return f"{fence}{pad}{plain}{pad}{fence}"
