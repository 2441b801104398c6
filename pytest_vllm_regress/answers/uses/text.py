"""Uses of vLLM in shell scripts, Dockerfiles, YAML (compose, Kubernetes, Helm, GitHub workflows)
and other text.

YAML is read line by line: templates of Helm are no YAML before they are rendered, and nothing here
may depend on a parser of untrusted documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .model import Declared, Place, Use
from .strings import StringReader

Word = tuple[str, int]
"""A word and its line."""
_SERVER = re.compile(
    r"\bvllm\s+serve\b|\bvllm\.entrypoints\.openai\.api_server\b|\bvllm/vllm-openai\b"
)
_PROGRAM = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\.openai\.api_server\b")
"""Starts the server. The name of its image may also be in ``docker build`` and ``docker push``."""
_SERVER_LIST = re.compile(r"""['"]?\bvllm['"]?\s*,\s*['"]?serve\b|^\s*-\s*['"]?vllm['"]?\s*$""")
_IMAGE = re.compile(r"\bvllm/vllm-openai:v?(\d+(?:\.\d+)+(?:\.post\d+)?)")
_INSTALLED = re.compile(
    r"""\bvllm(?:\[[\w,-]*\])?\s*((?:===?|[<>~!]=|[<>])\s*[\w.*+!]+(?:\s*,\s*(?:[=<>~!]=|[<>])\s*[\w.*]+)*)"""
)
_WORD = re.compile(r"""\{\{[^{}]*\}\}|[^\s\[\],"']+""")
_KEY = re.compile(r"""\s*(?:-\s+)?(["']?[\w.$-]+["']?):(?=\s|$)""")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_END = re.compile(r"^(?:;|\||&&|\|\||&)$")
MAX_LINE = 100_000
MAX_BLOCK = 400


def read_text(text: str, file: str, strings: StringReader) -> list[Use]:
    """Return the uses in a file that is no Python source."""
    lines = [_COMMENT.sub("", line[:MAX_LINE]) for line in text.splitlines()]
    uses = [
        use
        for number, line in enumerate(lines, 1)
        for use in strings.line(line, Place(file, number))
    ]
    is_yaml = file.endswith((".yaml", ".yml", ".tpl"))
    done = 0
    for number, line in enumerate(lines):
        if number >= done and (_SERVER.search(line) or _SERVER_LIST.search(line)):
            if is_yaml:
                words, done = _block(lines, number)
            else:
                words, done = _command(lines, number, is_dockerfile(file))
            alone = not is_yaml and _PROGRAM.search(line) is not None
            uses += strings.options(
                [word for word, _ in words], [Place(file, at) for _, at in words], alone=alone
            )
    return uses


def is_dockerfile(file: str) -> bool:
    name = file.rpartition("/")[2].lower()
    return name.startswith(("dockerfile", "containerfile")) or name.endswith(".dockerfile")


def pins(text: str, file: str) -> Iterator[Declared]:
    """Yield the releases that a file installs or names as an image; they hold for this file."""
    for number, line in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", line[:MAX_LINE])
        for version in _IMAGE.findall(line):
            yield Declared(f"=={version}", Place(file, number), local=True)
        if "install" in line or "uv " in line:
            for specifier in _INSTALLED.findall(line):
                yield Declared(specifier.replace(" ", ""), Place(file, number), local=True)


def _command(lines: list[str], start: int, dockerfile: bool) -> tuple[list[Word], int]:
    """Return the words of a command from the server on, over continued lines, and the number of the
    line after it.

    In a Dockerfile the next instruction CMD belongs to an ENTRYPOINT and to the image.
    """
    match = _SERVER.search(lines[start]) or _SERVER_LIST.search(lines[start])
    assert match is not None
    words: list[Word] = []
    number, text = start, lines[start][match.start() :]
    while True:
        for word in _WORD.findall(text.removesuffix("\\")):
            if _END.match(word):
                return words, number + 1
            words.append((word, number + 1))
            if word.endswith(";"):
                return words, number + 1
        goes_on = text.rstrip().endswith("\\")
        number += 1
        while (
            dockerfile
            and not goes_on
            and number < len(lines)
            and not lines[number].startswith(("CMD", "FROM"))
        ):
            number += 1
        if number >= len(lines) or number - start > MAX_BLOCK:
            return words, number
        text = lines[number]
        if not goes_on and not (dockerfile and text.startswith("CMD")):
            return words, number


def _block(lines: list[str], start: int) -> tuple[list[Word], int]:
    """Return the words of the mapping around a line of YAML (a container, a service, a step), and
    the line after it."""
    key = _key_above(lines, start)
    margin = _margin(lines[key])
    first = key
    while first > 0 and key - first < MAX_BLOCK and lines[first].lstrip()[:2] != "- ":
        if lines[first - 1].strip() and _margin(lines[first - 1]) < margin:
            break
        first -= 1
    last = key + 1
    while (
        last < len(lines)
        and last - key < MAX_BLOCK
        and not (lines[last].strip() and _indent(lines[last]) < margin)
    ):
        last += 1
    numbered = [
        (word, number + 1) for number in range(first, last) for word in _WORD.findall(lines[number])
    ]
    return [(word, line) for word, line in numbered if word != "-"], max(last, start + 1)


def _key_above(lines: list[str], start: int) -> int:
    """Return the number of the line with the key to whose value a line belongs."""
    if _KEY.match(lines[start]):
        return start
    limit = _indent(lines[start]) + lines[start].lstrip().startswith("- ")
    for number in range(start - 1, max(start - MAX_BLOCK, -1), -1):
        if _KEY.match(lines[number]) and _indent(lines[number]) < limit:
            return number
    return start


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _margin(line: str) -> int:
    """Return the column at which a key begins; that of a key after ``- `` is its own."""
    match = _KEY.match(line)
    return match.start(1) if match else _indent(line)
