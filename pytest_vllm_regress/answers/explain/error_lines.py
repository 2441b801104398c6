"""Lines of a log that report an error without a traceback."""

from __future__ import annotations

import re

from .diagnoses import matches_line
from .prefixes import LogLine
from .tracebacks import FailureForm, LoggedFailure

ERROR_LITERALS = (b"rror", b"ERROR", b"Exception", b"ssert")
"""Texts that select the lines that report an error."""
RARE_LITERALS = (b"CRITICAL", b"Fatal ", b"what():", b"NotFound", b"Died", b"Failed: ")
"""Further ones, of failures that rarely stand alone."""
_MAX_TEXT = 1_500
_SAYING = re.compile(r"\w.*\w.*\w.*\w", re.DOTALL)
"""A line that says something, unlike the carets below code."""
_MAX_SEARCHED = 4_000
_MAX_ANNOUNCEMENT = 250
_MIN_HINT = 12
_NAME = (
    r"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?"
    r"(?:Error|Exception|Interrupt|(?<=\w)(?:NotFound|Timeout|Died|Failure|Failed))(?:\(\w+\))?"
)
_START = re.compile(rf"[`'\"*(<\s-]{{0,8}}({_NAME})(?:: ?(?!:)|\((?=['\"]))(\S.*)")
_INSIDE = re.compile(rf"(?<![\w.:'\"])({_NAME})(?:: ?(?!:)|\((?=['\"]))(\S.*)")
_BARE = re.compile(rf"(?!Error|Exception)({_NAME})\s*$")
_ASSERT = re.compile(r"E? *(assert \S.*)")
_GENERIC = re.compile(
    r"[`'\"*(-]{0,8}(?:[\w./-]+(?::\d+)*: )*(?:vllm(?: \w+)?: |cc1plus: |\w[\w .-]{0,30}: |(?:CUDA|HIP|NCCL|cuBLAS|Triton|rocblas\w*|hipblas\w*) )?"
    r"((?:fatal )?error(?: \w+)?: ?\S.*|Fatal Python error: .*|CMake Error.*|argument \S+: invalid.*)"
    r"|(?:[\w./-]+: )*(terminate called .*|what\(\): .*|.*\bAssertion [`'].*|Assertion .* failed.*)",
    re.IGNORECASE,
)
_GENERIC_INSIDE = re.compile(r"`((?:\w+: )?(?:error|CMake Error|fatal error)[^`]{0,20}: [^`]+)`")
_NO_REPORT = re.compile(
    r"^\s*(?:usage:|raise \w|except |import |from |class |def |return |File \"|.{0,80}Traceback \(most)"
)
_OF_PYTEST = re.compile(r"(?:^|\s)E {2}")
_SOURCE_CODE = re.compile(r"^\s*(?:#|//|\d+ [|:]|[-+] )|^\s*\w+ = |\bexcept\b")
_QUOTED = re.compile(
    r"(?i:errors?|exceptions?|rais(?:es?|ed|ing)|fail(?:s|ed|ure|ing)?|saying|stating|messages?)\b"
    r"[^\"'`\u201c]{0,60}[\"'`\u201c]+(?P<text>[A-Z][^`\u201d]{14,300}?)(?:[\"'`\u201d]|$)"
)
"""What prose quotes as the message of an error."""
_ANNOUNCED = re.compile(
    r"(?!The above)(?:.{0,200}\b(?:this|following) (?:errors?|exception)(?: messages?)?"
    r"|\W*(?:the |my |current |full |got )*(?:error|exception)"
    r"(?: messages?| logs?| output| info\w*| details?)?(?: (?:is|was|from [\w.]+))?\W*:)\W{0,4}$",
    re.IGNORECASE,
)
_COMMAND = re.compile(
    r"[-$#<>{}!|*]|(?:curl|python3?|docker|vllm|pip|import|from|def|bash|sh|Traceback) "
)
REQUEST = "Received request "
"""Start of the line in which vLLM logs a prompt, which may contain any text."""
_WRITTEN = re.compile(
    r"^(?:Added request|Generated response|Request body|Response body)"
    r"|['\"](?:content|prompt|messages)['\"]: |\bprompt: ['\"]"
)
_WRITTEN_LITERALS = ("prompt", "content", "messages", "Added request", "response", "Request body")
"""What a client or a model wrote, in lines that vLLM or a program logs."""


def announces(text: str) -> bool:
    """Return whether the next line is the message of an error."""
    return len(text) < _MAX_ANNOUNCEMENT and _ANNOUNCED.match(text) is not None


def read_announced(line: LogLine, number: int, phase: str) -> LoggedFailure | None:
    """Return the failure in the line after one that announces it; None for a command or code."""
    text = line.text.strip()[:_MAX_SEARCHED]
    if len(text) < _MIN_HINT or _COMMAND.match(text):
        return None
    return LoggedFailure("", text[:300], (), number, number, False, phase, FailureForm.HINT)


def is_written(text: str) -> bool:
    """Return whether the line has the text of a prompt, request or answer: it is no evidence."""
    if not any(map(text.__contains__, _WRITTEN_LITERALS)):
        return False
    return _WRITTEN.search(text) is not None and _START.match(text) is None


def read_line(line: LogLine, number: int, phase: str) -> LoggedFailure | None:
    """Return the failure that a line without an exception reports in the words of a diagnosis."""
    if line.is_quiet or line.is_warning or not matches_line(line.text):
        return None
    words = line.text.strip()[:_MAX_TEXT]
    return LoggedFailure("", words, (), number, number, False, phase, FailureForm.LINE)


def read_error(line: LogLine, number: int, phase: str) -> LoggedFailure | None:
    """Return the failure that a line outside a traceback reports, or None."""
    if line.is_quiet or line.is_warning or is_written(line.text) or _NO_REPORT.match(line.text):
        return None
    found = _exception_in(line) or _error_in(line)
    if found is None:
        return None
    form, exception, message = found
    message = message.strip().rstrip("`*|")[:_MAX_TEXT]
    return LoggedFailure(
        exception, message, (), number, number, False, phase, form, source=line.source
    )


def _exception_in(line: LogLine) -> tuple[FailureForm, str, str] | None:
    text = line.text.strip()[:_MAX_SEARCHED]
    if match := _START.match(text):
        return FailureForm.LINE, match[1], _unquoted(text, match)
    if match := _GENERIC_INSIDE.search(text):
        return FailureForm.LINE, "", match[1]
    if match := _INSIDE.search(text):
        is_prose = not line.level and _SOURCE_CODE.search(text) is not None
        return None if is_prose else (FailureForm.MENTIONED, match[1], _unquoted(text, match))
    if match := _BARE.match(text):
        return FailureForm.MENTIONED, match[1], ""
    if not line.prefix and text.startswith("assert "):
        return FailureForm.HINT, "AssertionError", text
    if not line.prefix and (match := _QUOTED.search(text)):
        return FailureForm.HINT, "", match["text"]
    return None


def _unquoted(text: str, match: re.Match[str]) -> str:
    """Return the message; within backticks only what stands between them."""
    is_quoted = text[: match.start(1)].endswith("`")
    return match[2].partition("`")[0] if is_quoted else match[2]


def _error_in(line: LogLine) -> tuple[FailureForm, str, str] | None:
    text = line.text.strip()[:_MAX_SEARCHED]
    if match := _GENERIC.match(text):
        return FailureForm.LINE, "", match[0]
    if _OF_PYTEST.search(line.prefix) and (match := _ASSERT.match(text)):
        return FailureForm.LINE, "AssertionError", match[1]
    if line.level in ("ERROR", "CRITICAL", "FATAL") and _SAYING.search(text):
        return FailureForm.LOGGED, "", text
    return None
