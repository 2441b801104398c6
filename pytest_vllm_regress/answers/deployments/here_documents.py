"""Servers of scripts, and of the manifests, units and programs that scripts have as here-documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from textwrap import dedent

from .findings import ServerCommand, Unreadable
from .manifests import of_yaml
from .programs import of_python
from .shell import of_script
from .shell_words import MAX_BLOCKS
from .units import is_unit, of_unit

HERE_DOCUMENT = re.compile(
    r"(?P<start><<-?[ \t]*(?P<q>['\"]?)(?P<end>\w+)(?P=q)[^\n]*\n)(?P<body>(?:(?![ \t]*(?P=end)[ \t]*$).*\n)*)",
    re.MULTILINE,
)
_PRINTED = re.compile(r"[ \t]*cat[ \t]*\Z")
"""What precedes a here-document that is only printed, rather than written to a file or run."""
_RUN_BY_PYTHON = re.compile(r"(?i:python)[\w.]*[^\n|;&]*\Z")
_MANIFEST = re.compile(r"(?m)^\s*(?:- )?(?:kind|services|containers|image|run):")
_HELD = re.compile(
    rf"(?m)^(?P<indent>[ \t]*(?:(?:local|export|readonly|declare)[ \t]+)?)"
    rf"(?:(?P<name>\w+)=\"?\$\([ \t]*cat[ \t]*|(?:IFS=\S*[ \t]+)?read[ \t]+(?:-\S+[ \t]+(?:''[ \t]+)?)*(?P<read>\w+)[ \t]*)"
    rf"{HERE_DOCUMENT.pattern}(?:[ \t]*(?P=end)[ \t]*(?:\n[ \t]*\)\"?)?)?"
)
"""A here-document that becomes the value of a variable."""
_PRINTED_BY = re.compile(
    rf"(?m)^(?P<assigned>[ \t]*(?:\w+[ \t]+)?\w+\+?=)\"?\$\([^()\n]*{HERE_DOCUMENT.pattern}(?:[ \t]*(?P=end)[ \t]*(?:\n[ \t]*\)\"?)?)?"
)
"""An assignment of the output of a command that reads a here-document."""
_ADDED = re.compile(r"(?m)^[ \t]*(?:\$\{?\w+(?::?[-+][^\n{}]*)?\}?|\$\([^\n]*\))+[ \t]*$")
"""A line of a manifest that consists only of a variable or of a command's output."""
_CHANGES_OBJECT = re.compile(
    r"(?m)^[^\n#]*(?:\b(?:kubectl|oc)\b[^\n|;]{0,300}[ \t](?:patch|set|edit|replace|apply[ \t]+-k)\b|\bkustomize\b|\benvsubst\b"
    r"|\bhelm\b[^\n]{0,300}[ \t]--(?:set|values|post-renderer)|\bcompose\b[^\n]{0,100}[ \t]-f\b[^\n]{0,100}[ \t]-f\b)"
)
"""A command that may change what a manifest describes."""
_CHANGES_FILE = re.compile(
    r"(?m)^[^\n#]*(?:\b(?:(?:sed|perl)\b[^\n;&|]{0,300}[ \t]-\w*i|yq)\b[^\n;&|]{0,300}[ \t\"'/]"
    r"|(?:>>|\btee[ \t]+(?:-a|--append)\b)[^\n;&|]{0,300}?[ \t\"'/])"
    r"(?P<file>[^\s;|&\"'<>/]+)[\"']?[ \t]*(?:$|[;&|<])"
)
_WRITTEN = re.compile(r"(?:>[ \t]*|\btee[ \t]+)[\"']?([^\s;|&\"'<>]+)")


def of_shell(text: str) -> Iterator[ServerCommand | Unreadable]:
    """Yield the servers of a script, and of the manifests, units and programs that it writes, applies
    or runs. What it changes afterwards may have more options."""
    if "<<" in text:
        text = _HELD.sub(_as_assignment, text)
        text = _PRINTED_BY.sub(
            lambda m: m["assigned"] + "$(command)" + "\n" * m[0].count("\n"), text
        )
    documents = _Documents(text)
    for found in documents.servers():
        if isinstance(found, ServerCommand) and documents.is_changed(found.line):
            found = replace(found, complete=False)
        yield found


def _as_assignment(match: re.Match[str]) -> str:
    """Return ``NAME=$(cat <<EOF`` as an assignment of the text."""
    body, sign = match["body"], "'" if match["q"] else '"'
    body = body.replace("'", "'\\''") if match["q"] else re.sub(r'(?<!\\)"', r'\\"', body)
    end = "\n" * (match[0].count("\n") - body.count("\n") - 1)
    return f"{match['indent']}{match['name'] or match['read']}={sign}\n{body}{sign}{end}"


def _last_part(path: str) -> str:
    return path.rpartition("/")[2]


def _unescaped(body: str) -> str:
    return re.sub(r"\\([\\$`])", r"\1", body)


class _Documents:
    """The here-documents of a script, sorted into manifests, units, programs and scripts. Manifests
    are joined into one text, because they may refer to each other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines: dict[range, str] = {}  # with the name of the file that has them
        self._manifests: list[str] = [""] * (text.count("\n") + 2)
        self._has_manifest = self._has_added = False
        self._units: list[str] = []
        self._programs: list[str] = []
        self._script = HERE_DOCUMENT.sub(self._take, text) if "<<" in text else text

    def is_changed(self, line: int) -> bool:
        """Return whether a command may change what the document on a line has written."""
        name = next((name for lines, name in self._lines.items() if line in lines), None)
        if name is None:
            return False
        objects = self._has_manifest and _CHANGES_OBJECT.search(self._text)
        changed = islice(_CHANGES_FILE.finditer(self._text), MAX_BLOCKS)
        return bool(objects) or any(
            name == match["file"] or "*" in match["file"] or ("$" in name and "$" in match["file"])
            for match in changed
        )

    def _take(self, match: re.Match[str]) -> str:
        """Sort a here-document in, and return what stays in its place: the body of a script, otherwise
        as many empty lines."""
        body, text = match["body"], self._text
        without = match["start"] + "\n" * body.count("\n")
        start = text.rfind("\n", 0, match.start()) + 1
        is_printed = _PRINTED.search(text, start, match.start())
        if is_printed and not re.search(r"[>|]", match["start"]):
            return without
        first = text.count("\n", 0, match.start("body"))
        command = text[start : match.start("body")]
        file = _WRITTEN.search(command)
        lines = range(first + 1, first + body.count("\n") + 1)
        self._lines[lines] = _last_part(file[1]) if file else ""
        if _RUN_BY_PYTHON.search(text, start, match.start()):
            self._programs.append("\n" * first + body)
        elif is_unit(body):
            self._units.append("\n" * first + dedent(body))
        elif _MANIFEST.search(body):
            self._manifests[first : first + len(lines) + 1] = [*body.splitlines(), "---"]
            self._has_manifest = True
            self._has_added = self._has_added or (
                not match["q"] and _ADDED.search(body) is not None
            )
        else:
            return match["start"] + (body if match["q"] else _unescaped(body))
        return without

    def servers(self) -> Iterator[ServerCommand | Unreadable]:
        yield from of_script(self._script)
        for unit in self._units[:MAX_BLOCKS]:
            yield from of_unit(unit)
        for program in self._programs[:MAX_BLOCKS]:
            yield from (f for f in of_python(program) if isinstance(f, ServerCommand))
        for found in of_yaml("\n".join(self._manifests)) if self._has_manifest else ():
            if isinstance(found, ServerCommand):
                yield replace(found, complete=found.complete and not self._has_added)
