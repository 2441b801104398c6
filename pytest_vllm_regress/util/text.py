"""Texts: untrusted ones made safe to show, and those from the templates in ``data/texts``.

Untrusted text that was made safe cannot control the terminal, hide characters, forge lines,
or have an effect in Markdown.

GitHub links commits and issues and notifies people even in escaped text, but not in code.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from pathlib import Path
from typing import Any, TypeVar, cast

from ..errors import UsageError
from .files import private_folder
from .paths import DATA, writable_root

Text = TypeVar("Text", bound=str)
"""Masked text stays masked."""

_PLAIN_WORD = re.compile(r"[A-Za-z0-9,.;()'/+=-]*:?")
_REFERENCE = re.compile(r"www\.|\b(?:GH|GHSA|CVE)-|\b[0-9a-f]{7,}\b|^[-+=]|^\d+[.)]$", re.I)
"""Words that GitHub turns into a link (for example a commit id), and the start of a list."""
_ADDRESS = re.compile(r"https://[A-Za-z0-9.-]+(?::[0-9]+)?(?:/[^\s<>`]*)?")
_WORKFLOW_COMMAND = re.compile(
    r"^([^\S\n]*+):(?=:[A-Za-z][\w-]*+(?: [^\n]*?)?::)|#(?=#\[)", re.MULTILINE
)
"""Output that GitHub Actions would obey:

``::error::text`` at the start of a line, and ``##[error]text`` anywhere.
"""
_COMMAND_IN_LINE = re.compile(r"(?:(?<![^\s|])|(?<=\\n)):(?=:[A-Za-z][\w-]*+(?: [^:]{0,200}+)?::)")
"""A command that a table may wrap to the start of a line."""
_MAX_HELD = 1 << 16
_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,40}m)")


def printable(text: str) -> str:
    """Escape non-printable characters: control characters, direction marks, zero-width characters.
    Keeps line breaks.

    Commands of GitHub Actions are escaped, too.
    """
    return _without_commands(_printable_lines(text))


def printable_output(text: str) -> str:
    """Like ``printable``, for what a program has printed: keep its colours and tabs."""
    pieces = _COLOUR.split(text.replace("\r\n", "\n"))
    pieces[::2] = ("\t".join(map(_printable_lines, piece.split("\t"))) for piece in pieces[::2])
    return _without_commands("".join(pieces))


def without_colours(text: str) -> str:
    """Return ``text`` without the escape sequences that set colours."""
    return _COLOUR.sub("", text)


def split_output(text: str) -> tuple[str, str]:
    """Split unfinished output into the part that ``printable_output`` can escape now, and an
    incomplete sequence at its end."""
    line = text.rfind("\n") + 1
    begin = text.rfind("\x1b", max(line, len(text) - 48))
    if text[line : line + 200].lstrip().startswith(":"):
        at = line
    elif begin >= 0 and not _COLOUR.match(text, begin):
        at = begin
    else:
        at = len(text) - len(text[-2:]) + len(text[-2:].rstrip("\r#"))
    return (text[:at], text[at:]) if len(text) - at < _MAX_HELD else (text, "")


def one_line(text: str) -> str:
    """Like ``printable``, but escape line breaks, too: for a name or a table cell."""
    return _COMMAND_IN_LINE.sub(
        "\\\\x3a", _without_commands(_printable_line(text).replace("\n", "\\n"))
    )


def _printable_lines(text: str) -> str:
    return text if text.isprintable() else "\n".join(map(_printable_line, text.split("\n")))


def _printable_line(line: str) -> str:
    return line if line.isprintable() else "".join(map(_printable_character, line))


def _printable_character(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return "    " if character == "\t" else ascii(character)[1:-1]


def _without_commands(text: str) -> str:
    if "::" not in text and "##[" not in text:
        return text
    return _WORKFLOW_COMMAND.sub(lambda sign: (sign[1] or "") + f"\\x{ord(sign[0][-1]):02x}", text)


def truncate_middle(text: Text, limit: int) -> Text:
    """Return ``text``, shortened to ``limit`` characters by replacing its middle with a line that
    counts what was left out."""
    if len(text) <= limit:
        return text
    half = max(0, (limit - 60) // 2)
    shortened = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[len(text) - half :]}"
    return cast(Text, shortened)


def markdown_inline(text: str) -> str:
    """Return ``text`` on one line.

    Anything but plain words becomes code, where Markdown, HTML, mentions and references have no
    effect.
    """
    words = printable(text).split()
    line = " ".join(words)
    if all(map(_is_plain_word, words)):
        return line
    fence = "`" * (1 + _longest_backticks(line))
    return f"{fence} {line} {fence}"


def markdown_address(text: str) -> str:
    """Return ``text`` as a link that shows its address; as code if it is no address."""
    return f"<{text}>" if _ADDRESS.fullmatch(text) and text.isprintable() else markdown_inline(text)


def markdown_cell(text: str) -> str:
    """Like ``markdown_inline``, for a cell of a table: the column separator is escaped, which is
    necessary even in code."""
    return re.sub(r"\\(?=\|)", r"\\ ", markdown_inline(text)).replace("|", "\\|")


def markdown_block(text: str, language: str = "") -> str:
    """Return ``text`` as a block of code. The fence is longer than any row of backticks in it."""
    fence = "`" * max(3, 1 + _longest_backticks(text))
    return f"{fence}{language}\n{printable(text)}\n{fence}"


def _is_plain_word(word: str) -> bool:
    return _PLAIN_WORD.fullmatch(word) is not None and not _REFERENCE.search(word)


def _longest_backticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def render_text(template: str, folder: Path = DATA / "texts", **values: Any) -> str:
    """Return the text of a template. Nothing is escaped unless a filter does it."""
    text: str = _texts(folder).get_template(template).render(**values)
    return text


def toml_string(value: str) -> str:
    """Return a TOML basic string. TOML has the escapes of JSON, but requires one for DEL too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@functools.cache
def _texts(folder: Path) -> Any:
    environment = templates(folder, keep_trailing_newline=True)
    environment.filters["address"] = markdown_address
    environment.filters["inline"] = markdown_inline
    environment.filters["line"] = one_line
    environment.filters["block"] = markdown_block
    environment.filters["toml"] = toml_string
    return environment


def templates(folder: Path, **settings: Any) -> Any:
    """Return Jinja's environment of the templates in ``folder``, in which a name that is missing is
    an error."""
    import jinja2

    class CompiledTemplates(jinja2.FileSystemBytecodeCache):
        """Compiling the templates of one answer takes longer than importing Jinja. A folder that cannot
        be used, or a full disk, is no reason to fail."""

        def load_bytecode(self, bucket: Any) -> None:
            with contextlib.suppress(OSError):
                super().load_bytecode(bucket)

        def dump_bytecode(self, bucket: Any) -> None:
            with contextlib.suppress(OSError):
                super().dump_bytecode(bucket)

    compiled = None
    with contextlib.suppress(UsageError, OSError):
        compiled = CompiledTemplates(str(private_folder(writable_root() / "templates")))
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        bytecode_cache=compiled,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **settings,
    )
