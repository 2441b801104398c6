"""Lines of a log that report an error without a traceback."""

from __future__ import annotations

import re

from .diagnoses import matches_line
from .prefixes import LogLine
from .tracebacks import Form, LoggedFailure

ERROR_LITERALS = (b"rror", b"ERROR", b"CRITICAL", b"Exception", b"Fatal ", b"ssert", b"what():")
"""Texts of which every line that reports an error contains one, or one of a diagnosis."""
_MAX_TEXT = 1_500
_NAME = (
    r"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?"
    r"(?:Error|Exception|Interrupt|NotFound|Timeout|Died|Failure)(?:\(\w+\))?"
)
_START = re.compile(rf"[`'\"*(<\s-]*({_NAME})(?:: ?(?!:)|\((?=['\"]))(\S.*)")
_INSIDE = re.compile(rf"(?<![\w.:'\"])({_NAME})(?:: ?(?!:)|\((?=['\"]))(\S.*)")
_BARE = re.compile(rf"(?!Error|Exception)({_NAME})\s*$")
_ASSERT = re.compile(r"E? *(assert \S.*)")
_GENERIC = re.compile(
    r"[`'\"*(-]*(?:[\w./-]+(?::\d+)*: )*(?:vllm(?: \w+)?: |cc1plus: |\w[\w .-]{0,30}: |(?:CUDA|HIP|NCCL|cuBLAS|Triton) )?"
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
_REPEATED = re.compile(r"\s*\x1b?\[?\d*m?\[repeated \d+x across cluster\].*$")
REQUEST = "Received request "
"""Start of the line in which vLLM logs a prompt, which may contain any text."""
_WRITTEN = re.compile(
    r"^(?:Added request|Generated response|Request body|Response body)"
    r"|['\"](?:content|prompt|messages)['\"]: |\bprompt: ['\"]"
)
"""What a client or a model wrote, in lines that vLLM or a program logs."""


def is_written(text: str) -> bool:
    """Return whether the line has the text of a prompt, request or answer: it is no evidence."""
    return _WRITTEN.search(text) is not None and _START.match(text) is None


def read_line(line: LogLine, number: int, phase: str) -> LoggedFailure | None:
    """Return the failure that a line without an exception reports in the words of a diagnosis."""
    if line.is_quiet or line.is_warning or not matches_line(line.text):
        return None
    words = line.text.strip()[:_MAX_TEXT]
    return LoggedFailure("", words, (), number, number, False, phase, Form.LINE)


def read_error(line: LogLine, number: int, phase: str) -> LoggedFailure | None:
    """Return the failure that a line outside a traceback reports, or None."""
    if line.is_quiet or line.is_warning or is_written(line.text) or _NO_REPORT.match(line.text):
        return None
    found = _exception_in(line) or _error_in(line)
    if found is None:
        return None
    form, exception, message = found
    message = _REPEATED.sub("", message.strip().rstrip("`*|"))[:_MAX_TEXT]
    return LoggedFailure(
        exception, message, (), number, number, False, phase, form, source=line.source
    )


def _exception_in(line: LogLine) -> tuple[Form, str, str] | None:
    text = line.text.strip()
    if match := _START.match(text):
        return Form.LINE, match[1], match[2]
    if match := _GENERIC_INSIDE.search(text):
        return Form.LINE, "", match[1]
    if match := _INSIDE.search(text):
        is_prose = not line.level and _SOURCE_CODE.search(text) is not None
        return None if is_prose else (Form.MENTIONED, match[1], match[2])
    if match := _BARE.match(text):
        return Form.MENTIONED, match[1], ""
    return None


def _error_in(line: LogLine) -> tuple[Form, str, str] | None:
    text = line.text.strip()
    if match := _GENERIC.match(text):
        return Form.LINE, "", match[0]
    if _OF_PYTEST.search(line.prefix) and (match := _ASSERT.match(text)):
        return Form.LINE, "AssertionError", match[1]
    if line.level in ("ERROR", "CRITICAL", "FATAL") and len(text) > 3:
        return Form.LOGGED, "", text
    return None
