"""The parts of a page that a script writes: they stand between ``<!-- generated: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping


def rebuilt(page: str, parts: Mapping[str, Callable[[], Iterable[str]]]) -> str:
    """The page with the lines of each part written anew. Raises ``SystemExit`` where a part does not stand there exactly once."""
    for name, rows in parts.items():
        text = "\n".join(rows())
        whole = f"<!-- generated: {name} -->\n{text}\n<!-- end -->".replace("\\", r"\\")
        page, times = re.subn(f"<!-- generated: {name} -->\n.*?<!-- end -->", whole, page, flags=re.DOTALL)
        if times != 1:
            raise SystemExit(f"{times} parts `generated: {name}`, one is needed")
    return page
