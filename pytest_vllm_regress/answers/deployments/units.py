"""Servers in units of systemd and supervisord, and in podman's containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from .findings import ServerCommand, Word
from .shell import RUNS_SCRIPT, model_of_variables, of_script, starts_elsewhere
from .shell_words import MAX_BLOCKS, split

_UNIT_COMMAND = re.compile(r"(?m)^(?:Exec\w+[ \t]*=[ \t]*[-@:+!]*|Exec=|command[ \t]*=[ \t]*)")
_UNIT_VARIABLE = re.compile(r"(?m)^[Ee]nvironment[ \t]*=[ \t]*(.*)")
_SECTION = re.compile(r"(?m)^\[program:.*\n(?:(?!\[).*\n?)*")
_UNIT_REFERENCE = re.compile(r"%\((?:ENV_)?(\w+)\)s|%([A-Za-z])\b")
_UNIT_IMAGE = re.compile(r"(?m)^Image[ \t]*=[ \t]*(\S.*)")
_UNIT_DESCRIPTION = re.compile(r"(?im)^Description[ \t]*=.*\bvllm\b.*$")
OF_OTHER_UNITS = re.compile(
    r"(?i)router|proxy|gateway|monitor|exporter|watch|health|bench|client|\bui\b|webui|download|updat|tunnel|backup|clean|setup|worker|ray"
)
"""Words in descriptions and scripts of units that are no servers."""
_STARTS = re.compile(r"(?m)^[ \t]*Exec(?:Start)?[ \t]*=")


def is_unit(text: str) -> bool:
    """Return whether a text in another file is a unit."""
    return _STARTS.search(text) is not None


def of_unit(text: str) -> Iterator[ServerCommand]:
    """Yield the servers of a unit, after translating it to an equivalent shell script."""
    if text.count("[program:") > 1:
        for section in islice(_SECTION.finditer(text), MAX_BLOCKS):
            yield from of_unit("\n" * text.count("\n", 0, section.start()) + section[0])
        return
    if "[program:" in text:  # of supervisord, where lines that are indented go on
        text = re.sub(r"\n(?=[ \t]+[^\s;#])", " \\\\\n", text)
    text = _UNIT_REFERENCE.sub(lambda match: f"${{{match[1] or match[2]}}}", text)
    image = _UNIT_IMAGE.search(text)
    start = f"docker run {image[1]} " if image else ""
    pairs = (re.split(r",(?=\w+=)", match[1]) for match in _UNIT_VARIABLE.finditer(text))
    variables = (part for pair in pairs for words in map(split, pair) for part in words)
    assigned = dict(word.split("=", 1) for word in variables if "=" in word)
    script = _UNIT_VARIABLE.sub("", _UNIT_COMMAND.sub(lambda _: start, text))
    started = list(of_script(script, variables=assigned))
    yield from started
    description = _UNIT_DESCRIPTION.search(text)
    is_vllm = description is not None and not OF_OTHER_UNITS.search(description[0])
    for match in _UNIT_COMMAND.finditer(text) if not started else ():
        line = text.count("\n", 0, match.start()) + 1
        words = split(text[match.end() :].partition("\n")[0], line)
        script = next((word for word in words if not RUNS_SCRIPT.fullmatch(word)), Word(""))
        is_script = is_vllm and script.endswith((".sh", ".py")) and match[0].startswith("ExecStart")
        if starts_elsewhere([script], is_vllm) or (is_script and not OF_OTHER_UNITS.search(script)):
            settings = model_of_variables(assigned)
            yield ServerCommand(
                (), line, assigned, settings=settings, is_certain=False, complete=False
            )
