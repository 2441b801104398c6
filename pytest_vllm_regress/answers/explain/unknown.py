"""Failures that no case documents: grouped by signature, with a search text for the tracker and the
command that starts a case."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import Any

from ...util import codec
from ...util.masking import mask
from .tracebacks import LoggedFailure

MAX_GROUPS = 200
MAX_FRAMES = 3
_VARIABLE = re.compile(
    r"\*\*\*|0x[0-9a-fA-F]+|[A-Za-z]:\\\S+|(?<![\w.])(?:/[\w.@+-]+)+|[0-9a-f]{8}-[0-9a-f-]{8,}|\b[0-9a-f]{12,}\b|\d+(?:\.\d+)*"
)
_WORDS_OF_SEARCH = 10
_MAX_TITLE = 72
_MAX_PATTERN = 120
_MAX_MESSAGE = 500


@dataclass(frozen=True)
class FailureSignature:
    """What two occurrences of one failure have in common: exception, innermost functions of vLLM
    (the last call first), phase."""

    exception: str
    frames: tuple[str, ...]
    phase: str


@dataclass(frozen=True)
class UnknownFailure:
    """A group of failures that no case documents.

    ``line``: of the first exception; ``message``: its text.
    """

    signature: FailureSignature
    message: str
    line: int
    versions: tuple[tuple[str, str], ...]
    count: int = 1

    @property
    def search_text(self) -> str:
        """Return words to search for in the tracker, without what differs between runs."""
        words = _VARIABLE.sub(" ", self.message).split()
        words = [word for word in words if re.search(r"[A-Za-z]{2}", word)][:_WORDS_OF_SEARCH]
        functions = (frame.rpartition(":")[2] for frame in self.signature.frames[:1])
        return " ".join((self.signature.exception, *(words or functions)))

    def command(self) -> str:
        """Return the ``vllm-regress new`` command for a case of this failure; REPORT is the number
        of the upstream report."""
        version = dict(self.versions).get("vllm", "")
        summary = ": ".join(filter(None, (self.signature.exception, self.message)))
        title = " ".join(_VARIABLE.sub("N", summary).split())[:_MAX_TITLE].rstrip()
        # zsh takes an unquoted == for the name of a program.
        affected = f" --affected '=={version}' --affected-env vllm-{version}" if version else ""
        phase = ("--kind", "exception", "--set", f"phase={self.signature.phase}")
        words = self._pattern().split(" ")
        while True:
            options = shlex.join(["--title", title, *phase, "--set", f"pattern={' '.join(words)}"])
            command = f"vllm-regress new REPORT {options}{affected}"
            if len(words) == 1 or mask(command) == command:
                return command
            words.pop()  # text after a word such as "token" would be masked as a secret

    def _pattern(self) -> str:
        pieces = _VARIABLE.split(self.message[:_MAX_PATTERN].rstrip())
        text = ".+?".join(re.escape(piece).replace(r"\ ", " ") for piece in pieces)
        return re.escape(self.signature.exception) + (f": {text}" if text else "")

    def to_json(self) -> dict[str, Any]:
        return {
            **codec.encode(self.signature),
            "message": self.message,
            "line": self.line,
            "count": self.count,
            "search": self.search_text,
            "command": self.command(),
        }


class UnknownFailures:
    """Groups failures by signature while a log is read.

    ``left_out``: number of failures beyond ``MAX_GROUPS`` groups.
    """

    def __init__(self) -> None:
        self._referring: tuple[LoggedFailure, dict[str, str]] | None = None
        """The first failure whose message only refers to another one.

        It is reported if the log shows no other failure.
        """
        self._groups: dict[FailureSignature, UnknownFailure] = {}
        self.left_out = 0

    def add(self, failure: LoggedFailure, versions: dict[str, str]) -> None:
        """Count a failure of vLLM, unless it follows from another one."""
        if not failure.vllm_frames() or failure.follows:
            return
        if failure.refers:
            self._referring = self._referring or (failure, versions)
        else:
            self._count(failure, versions)

    def _count(self, failure: LoggedFailure, versions: dict[str, str]) -> None:
        places = [frame.place for frame in reversed(failure.vllm_frames())]
        signature = FailureSignature(failure.name, tuple(places[:MAX_FRAMES]), failure.phase)
        if group := self._groups.get(signature):
            self._groups[signature] = replace(group, count=group.count + 1)
        elif len(self._groups) >= MAX_GROUPS:
            self.left_out += 1
        else:
            message = mask(failure.message[:_MAX_MESSAGE])
            self._groups[signature] = UnknownFailure(
                signature,
                # Without control characters, so that it can be published.
                "".join(sign if sign.isprintable() else " " for sign in message),
                line=failure.last,
                versions=tuple(sorted(versions.items())),
            )

    def groups(self, others: bool) -> tuple[UnknownFailure, ...]:
        """Return the groups in the order of the log.

        ``others``: whether the log shows documented failures.
        """
        if self._referring is not None and not others and not self._groups:
            self._count(*self._referring)
        return tuple(sorted(self._groups.values(), key=lambda group: group.line))
