"""What a failure says about its cause: message, frames and source lines of a traceback."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TEXT = 2000


@dataclass(frozen=True)
class VllmCall:
    """A call in vLLM: path below ``vllm/``, function, and its line of code if the traceback shows
    it."""

    path: str
    function: str
    code: str = ""


@dataclass(frozen=True)
class Evidence:
    """A failure: exceptions with their messages, the root cause first, and the calls in vLLM, the
    innermost last.

    ``about``: what the reporter says in his own words, such as the title of a report;
    ``settings``: names of models, parsers and architectures in the log; ``prose``: what stands around
    the log in the report.
    """

    message: str
    places: tuple[VllmCall, ...]
    about: str = ""
    settings: str = ""
    prose: str = ""
