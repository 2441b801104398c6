"""What the text of a report says besides tracebacks in Python's own form: calls in vLLM in other
forms, and prose."""

from __future__ import annotations

import re

from ..explain.prefixes import strip_prefix
from .evidence import VllmCall

MAX_CALLS = 100
MAX_PROSE = 3000
_MODULE = r"vllm/((?:[\w.-]+/)*[\w.-]+\.py)"
_CALL = re.compile(
    rf'File \\?"[^"\n]{{0,300}}?{_MODULE}\\?",(?:\s{{1,40}}line ~?\d+(?:, in (\w+))?)?'
    rf"|{_MODULE} in (\w+)\("  # IPython
    rf"|{_MODULE}\(\d+\): (\w+)"  # pybind11
    rf"|{_MODULE}:\d+: (?=\w+Error)()"  # pytest
)
"""A call in vLLM: the file in it, and the function if it is named."""
_WRAPPED = re.compile(r'(?<=", l)\n(?=ine ~?\d)')
_FENCE = "```"
_NO_PROSE = ("- [", "|", "<", "#", 'File "', "Traceback")


def calls_in(text: str) -> tuple[VllmCall, ...]:
    """Return the calls in vLLM that a text names in whatever form, the last one last."""
    calls: dict[tuple[str, str], VllmCall] = {}
    for match in _CALL.finditer(_WRAPPED.sub("", text)):
        at = next(at for at in range(1, len(match.groups()), 2) if match[at])
        path = match[at].rpartition("vllm/")[2]  # a checkout often lies in a folder called vllm
        function = match[at + 1] or ""
        calls.pop((path, function), None)
        calls[path, function] = VllmCall(path, function)
    return tuple(calls.values())[-MAX_CALLS:]


def prose_in(text: str) -> str:
    """Return what a person wrote around the logs in a report in Markdown; nothing of other text."""
    if _FENCE not in text:
        return ""
    kept: list[str] = []
    is_code = False
    for line in text.splitlines():
        words = line.strip()
        if words.startswith(_FENCE):
            is_code = not is_code
        elif not is_code and not words.startswith(_NO_PROSE) and not strip_prefix(words)[0]:
            kept.append(words)
    return "\n".join(kept)[:MAX_PROSE]
