"""Rendering of HTML. A page loads nothing: style and script are inside, and the content security
policy allows no other script.

Texts come from result files, case files and documents and are not trusted: templates escape them,
and control characters are shown as escapes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import time
from typing import Any

from ..._version import __version__
from ...util.paths import DATA
from ...util.text import printable

MAX_TEXT = 20_000
MAX_LINE = 400
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


def link_name(url: str) -> str:
    """Return a short text for an upstream link: ``vllm#17173``."""
    parts = url.rstrip("/").split("/")
    return f"{parts[-3]}#{parts[-1]}" if parts[-1].isdigit() and len(parts) > 3 else parts[-1][:40]


def date_text(now: float | None = None) -> str:
    """Return the date and minute of ``now``, in seconds since the epoch."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))


def _digest(content: str) -> str:
    """Return the hash by which a policy allows an inline script or style.

    The template adds a line break on both sides.
    """
    return "sha256-" + base64.b64encode(hashlib.sha256(f"\n{content}\n".encode()).digest()).decode()


@functools.cache
def _templates() -> Any:
    import jinja2

    folder = DATA / "page"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    style, script = (
        (folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    environment.globals.update(
        style=style,
        script=script,
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'",
        version=__version__,
        nav=(),
        images=False,
    )
    return environment
