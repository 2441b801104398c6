"""Texts from the templates in ``data/texts``: Markdown, TOML and Python code."""

from __future__ import annotations

import functools
import json
from typing import Any

from .paths import DATA
from .text import markdown_block, markdown_inline


def render_text(template: str, **values: Any) -> str:
    """Return the text of a template. Nothing is escaped unless a filter does it."""
    text: str = _templates().get_template(template).render(**values)
    return text


def toml_string(value: str) -> str:
    """Return a TOML basic string. TOML has the escapes of JSON, but requires one for DEL too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@functools.cache
def _templates() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(DATA / "texts"),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["inline"] = markdown_inline
    environment.filters["block"] = markdown_block
    environment.filters["toml"] = toml_string
    return environment
