"""What precedes the message of a line: quotes, colours and markup of the place where it was pasted,
times, levels, names of containers, hosts, processes, loggers and places in the code."""

from __future__ import annotations

import functools
import html
import re
from dataclasses import dataclass

_MAX_PREFIX = 400
_COLOUR = re.compile(
    r"\x1b\[[\d;?]*[A-Za-z]|\x1b\][^\x07]{0,200}\x07"
    r"|(?:#033|\\033|\\x1b|\\u001b|\\e|\^\[|\u241b)\[[\d;]*m"
    r"|\[(?:\d{1,3}(?:;\d{1,3})*)?m(?![\w.])|\[(?:0|[0-9];?[0-9]{2})m"
)
"""Colour codes, also where a tool wrote the escape as text or lost it."""
_LOST_ESCAPE = re.compile(r"\[[\d;m]")
_REPEATED = re.compile(r" *\[repeated \d+x across cluster\].*$")
_TAG = re.compile(
    r"</?(?:pre|code|details|summary|p|br|div|span|b|samp)"
    r"(?: [\w-]{1,30}=(?:\"[^\"<>]{0,200}\"|[\w-]{1,40}))* ?/?>",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#\d{2,5}|#x[0-9a-f]{2,4});", re.I)
_SPACES = {0xA0: " ", 0x2007: " ", 0x202F: " ", 0x200B: "", 0xFEFF: ""}
_QUOTE = re.compile(r"(?: {0,3}> ?)+(?=\S| |$)")
_BAR = re.compile(
    r"^.{0,300}(?:it/s|s/it|B/s|\d%\|)[^\r\n]{0,80}?\]?(?=Traceback \(most|ERROR |\()"
)
_AFTER_BAR = ("Traceback (most", "ERROR ", "%|", "it/s]", "s/it]", "B/s]")
"""One of these stands in a line with a progress bar before its message."""

_DATE = r"(?:\d{4}[-/]\d\d[-/]\d\d[T ]|\d\d-\d\d |[A-Z][a-z]{2} {1,2}\d{1,2} )?"
_TIME = rf"{_DATE}\d\d:\d\d:\d\d[\d.,]*(?:Z\b|[+-]\d\d:?\d\d)?"
_UPPER = r"(?:ERROR|CRITICAL|FATAL|WARNING|WARN|INFO|DEBUG|TRACE)"
_LEVEL = rf"(?:{_UPPER}|error|warning|info|debug)"
_PIECE = re.compile(
    rf"(?:\ufeff|_bk;t=\d+\x07"
    rf"|\[?{_TIME}\]?(?: std(?:out|err) [FP]| \d\d[OE])?[ \t]?(?:- |\| ?|: )?(?:[A-Z]+ +\S+ -- )?"
    r"|[\w.-]{1,64} [\w./-]{1,40}\[\d{1,9}\]: "
    r"|[EWIF]\d{4} \d\d:\d\d:\d\d[.\d]* +\d+ [\w./-]{1,80}:\d+\] ?"
    r"|\[[EWIF]?\d{3,4} \d\d:\d\d:\d\d[.\d]* [\w./-]{1,80}:\d+\] ?"
    rf"|{_UPPER}(?: *\| *| - |: +|:(?=[a-z_.]+:)|\s+(?=\[|\d|\w+\.\w|[\w.]+:|[A-Z]))"
    r"|\[(?!Errno)[A-Za-z][\w./:,+=-]{0,80}\]:?(?:\s|$)|\[rank\d+\]:\s?"
    rf"|(?:[a-z0-9]{{8,20}})?\[ *{_LEVEL} *\]:?\s?"
    r"|[\w.-]{1,60} +[|\u2502] |#\d{1,3} \d+\.\d+ |\d{1,5}\.\d{1,3} (?=\s*\S)"
    r"|\(\w[^\n]{0,100}? pid=\d+(?:, ip=[\w.:]+)?\) ?|##\[\w+\]"
    r"|\(\w[\w.-]{0,60}(?:[ _](?:pid|ip|rank)?=?[\w.=, ]{1,60})?\) ?"
    r"|\[?[\w./-]{1,80}\.(?:py|cpp|cc|cu):\d+\] ?|[\w./-]{1,60}:\d+\] "
    r"|[a-z_]\w{0,40}(?:\.\w{1,60}){1,8}(?::\w{1,60})?(?::\d+)? (?:-|\|) "
    r"|[a-z][\w-]{1,60}-[a-z0-9]{4,10} [a-z][\w-]{0,40} (?=\S)"
    r"|[E>] {2,3}|[EW] (?=  )|[\u2502|] {1,2}(?=\S| )| {2,40}[|\u2502] ?)"
)
_CONTAINER = re.compile(r"(?:([\w.-]{1,60}) +\| |\[(pod/[\w./-]{1,200})\] )")
_WHEN = re.compile(rf"{_TIME}(?: \d\d[OE])?|t=\d+|\s+|#\d+ \d+\.\d+|\d+\.\d+")
_LEVELS = re.compile(rf"\b{_LEVEL}\b")
_GLOG_ERROR = re.compile(r"(?:^|[\[\s])[EF]\d{3,4} \d\d:\d\d:\d\d")
_QUIET = frozenset({"INFO", "DEBUG", "TRACE"})
_WARNING = frozenset({"WARNING", "WARN"})


@dataclass(frozen=True)
class LogLine:
    """One line of a log. ``prefix``: what precedes its message; ``container``: named before it."""

    prefix: str
    text: str

    @functools.cached_property
    def source(self) -> str:
        """The prefix without its times: equal for all lines that one process wrote in one log
        record."""
        return source_of(self.prefix)

    @functools.cached_property
    def level(self) -> str:
        """The level in capitals, or an empty string."""
        if match := _LEVELS.search(self.prefix):
            return match[0].upper()
        return "ERROR" if _GLOG_ERROR.search(self.prefix) else ""

    @property
    def is_quiet(self) -> bool:
        """Whether it was logged at INFO or below. vLLM logs no exceptions at these levels."""
        return self.level in _QUIET

    @property
    def is_warning(self) -> bool:
        return self.level in _WARNING


def strip_prefix(line: str) -> tuple[str, str]:
    """Return what precedes the message of a line, and the message, without colours and markup."""
    line = _unmarked(line)
    end = 0
    while end < _MAX_PREFIX and (match := _PIECE.match(line, end)) and match.end() > end:
        end = match.end()
    return line[:end], line[end:]


def _unmarked(line: str) -> str:
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    elif _LOST_ESCAPE.search(line, 0, _MAX_PREFIX):
        line = _COLOUR.sub("", line[:_MAX_PREFIX]) + line[_MAX_PREFIX:]
    if not line.isascii():
        line = line.translate(_SPACES)
    if "<" in line:
        line = _TAG.sub("", line)
    if "&" in line and _ENTITY.search(line):
        line = html.unescape(line).translate(_SPACES)
    if "[repeated " in line:
        line = _REPEATED.sub("", line)
    if "\r" in line:
        line = line.rpartition("\r")[2]
    if line.lstrip().startswith(">") and (match := _QUOTE.match(line)):
        line = line[match.end() :]
    if any(map(line.__contains__, _AFTER_BAR)) and (match := _BAR.match(line)):
        line = line[match.end() :]
    return line


def source_of(prefix: str) -> str:
    """Return the prefix without its times: equal for all lines that one process wrote in one log
    record."""
    return _WHEN.sub("", prefix)


def container_of(prefix: str) -> str:
    """Return the container or pod that ``docker compose logs`` or ``kubectl logs`` names before
    each line, or an empty string."""
    match = _CONTAINER.match(prefix)
    return (match[1] or match[2]) if match else ""
