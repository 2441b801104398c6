"""Lines of logs without what terminals, CI systems, containers, vLLM and pytest put before each of
them."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_MAX_PREFIX = 400
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?"
_VLLM = r"(?:ERROR|CRITICAL|WARNING|INFO|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]{1,80}\] |\S{1,60}:\d+\] )?"
_PREFIX = re.compile(
    rf"(?:\ufeff|(?:{_TIME})(?: \d\d[OE] ?| [A-Z]+ +\S+ -- |\s)|_bk;t=\d+\x07|\[[\w./-]+\] |[\w.-]{{1,60}} +\| "
    rf"|\(\w[\w.-]{{0,60}}(?:[ _](?:pid|ip|rank)?=?[\w.=, ]{{1,60}})?\) |\[rank\d+\]:\s?|{_VLLM}|[E>] {{2,3}})"
)
_CONTAINER = re.compile(r"(?:([\w.-]{1,60}) +\| |\[(pod/[\w./-]{1,200})\] )")
_QUIET = re.compile(r"(?:INFO|DEBUG) \d\d-\d\d ")
_WHEN = re.compile(rf"{_TIME}(?: \d\d[OE])?|\d\d-\d\d \d\d:\d\d:\d\d|t=\d+|\s+")


def strip_prefix(line: str) -> tuple[str, str]:
    """Return what precedes the message of a line (times, process, rank, level, place in the code),
    and the message. Colours are removed."""
    line = _COLOUR.sub("", line)
    end = 0
    while end < _MAX_PREFIX and (match := _PREFIX.match(line, end)):
        end = match.end()
    return line[:end], line[end:]


def source_of(prefix: str) -> str:
    """Return the prefix without its times: equal for all lines that one process wrote in one log
    record."""
    return _WHEN.sub("", prefix)


def container_of(prefix: str) -> str:
    """Return the container or pod that ``docker compose logs`` or ``kubectl logs`` names before
    each line, or an empty string."""
    match = _CONTAINER.match(prefix)
    return (match[1] or match[2]) if match else ""


def is_quiet(prefix: str) -> bool:
    """Return whether vLLM logged the line at INFO or DEBUG.

    It logs no exceptions at these levels.
    """
    return _QUIET.search(prefix) is not None
