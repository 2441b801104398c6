"""Pages of Markdown from the templates in ``tools/templates``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_vllm_regress.util.report import Table, markdown_table
from pytest_vllm_regress.util.text import render_text

WRITTEN = "<!-- written by `python -m tools.docs`; do not edit -->"


def render(template: str, **values: Any) -> str:
    """Return a page. In its template ``table(TABLE)`` is Markdown of a table."""
    folder = Path(__file__).parent / "templates"
    return render_text(f"{template}.md", folder, written=WRITTEN, table=_table, **values)


def _table(table: Table) -> str:
    return "\n".join(markdown_table(table.header, table.rows))
