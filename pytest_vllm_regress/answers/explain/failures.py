"""The failures in a log, grouped by signature, and which of them is the root cause."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...util.masking import mask
from .diagnoses import Diagnosed, diagnose, look_elsewhere
from .tracebacks import FailureForm, LoggedFailure

MAX_GROUPS = 200
MAX_FRAMES = 3
_MAX_KEPT = 5
"""Other failures that are shown beside the root cause."""
_VARIABLE = re.compile(
    r"\*\*\*|0x[0-9a-fA-F]+|[A-Za-z]:\\\S+|(?<![\w.])(?:/[\w.@+-]+)+|[0-9a-f]{8}-[0-9a-f-]{8,}|\b[0-9a-f]{12,}\b|\d+(?:\.\d+)*"
)
_WORDS_OF_SEARCH = 10
_MAX_TITLE = 72
_MAX_PATTERN = 120
_MAX_MESSAGE = 500
_VAGUE = frozenset({"KeyError", "AttributeError", "StopIteration", "IndexError"})
"""Exceptions that are often only handled on the way to the one that says what is wrong."""


def without_variables(text: str) -> str:
    """Return a text without what differs between runs: numbers, addresses, paths, ids."""
    return " ".join(_VARIABLE.sub(" ", text).split())


@dataclass(frozen=True)
class FailureSignature:
    """What two occurrences of one failure have in common: exception, innermost functions of vLLM
    (the last call first), phase."""

    exception: str
    frames: tuple[str, ...]
    phase: str


@dataclass
class UnknownFailure:
    """A group of failures that no case documents.

    ``failure``: the first one; ``versions``: of the packages that the log names before it.
    """

    signature: FailureSignature
    failure: LoggedFailure
    versions: tuple[tuple[str, str], ...]
    count: int = 1
    diagnosed: Diagnosed | None = None
    look: str = ""
    """Which log to look into, if the failure only follows from another one."""

    @property
    def is_doubtful(self) -> bool:
        """Whether only a person's words say that it is a failure."""
        return self.failure.form is FailureForm.HINT

    @property
    def line(self) -> int:
        """The line of the first exception."""
        return self.failure.last

    @property
    def message(self) -> str:
        """Its text, masked, without control characters, so that it can be published."""
        words = mask((self.failure.message or self.failure.code)[:_MAX_MESSAGE])
        return "".join(sign if sign.isprintable() else " " for sign in words)

    @property
    def title(self) -> str:
        """Exception and message."""
        return ": ".join(filter(None, (self.signature.exception, self.message)))

    @property
    def chain(self) -> tuple[tuple[int, str], ...]:
        """Lines and texts of the other exceptions of its chain."""
        return tuple(
            (other.last, mask(other.text[:_MAX_MESSAGE]))
            for other in self.failure.ends()
            if other is not self.failure
        )

    @property
    def search_text(self) -> str:
        """Return words to search for in the tracker, without what differs between runs."""
        words = _VARIABLE.sub(" ", self.message).split()
        words = [word for word in words if re.search(r"[A-Za-z]{2}", word)][:_WORDS_OF_SEARCH]
        functions = (frame.rpartition(":")[2] for frame in self.signature.frames[:1])
        return " ".join(filter(None, (self.signature.exception, *(words or functions))))

    def command(self) -> str:
        """Return the ``vllm-regress new`` command for a case of this failure; REPORT is the number
        of the upstream report."""
        version = dict(self.versions).get("vllm", "")
        title = " ".join(_VARIABLE.sub("N", self.title).split())[:_MAX_TITLE].rstrip()
        # zsh takes an unquoted == for the name of a program.
        affected = f" --affected '=={version}' --affected-env vllm-{version}" if version else ""
        kind = "engine-death" if self.failure.ends_engine else "exception"
        phase = ("--kind", kind, "--set", f"phase={self.signature.phase}")
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
        return ": ".join(filter(None, (re.escape(self.signature.exception), text)))

    def to_json(self) -> dict[str, Any]:
        own = {"message": self.message, "line": self.line, "count": self.count}
        first = {"first_line": self.failure.first, "form": self.failure.form.name.lower()}
        derived = {"search": self.search_text, "command": self.command(), "chain": self.chain}
        cause = vars(self.diagnosed) if self.diagnosed else None
        return vars(self.signature) | own | first | derived | {"diagnosis": cause}


@dataclass
class RankedFailures:
    """The failures of a log: ``root`` (None if there is none but follow-ups), ``others`` that
    neither led to it nor follow from it, and ``follow_ups``."""

    root: UnknownFailure | None = None
    others: tuple[UnknownFailure, ...] = ()
    follow_ups: tuple[UnknownFailure, ...] = ()


@dataclass
class UnknownFailures:
    """Groups failures by signature while a log is read.

    ``left_out``: number of failures beyond ``MAX_GROUPS`` groups.
    """

    left_out: int = 0
    _groups: dict[tuple[FailureSignature, str], UnknownFailure] = field(default_factory=dict)

    def add(self, failure: LoggedFailure, versions: Mapping[str, str]) -> None:
        """Count a failure."""
        places = [frame.place for frame in reversed(failure.vllm_frames())]
        signature = FailureSignature(failure.name, tuple(places[:MAX_FRAMES]), failure.phase)
        words = "" if places else _VARIABLE.sub("", failure.text)[:120]
        key = signature, words
        if group := self._groups.get(key):
            group.count += 1
        elif len(self._groups) >= MAX_GROUPS:
            self.left_out += 1
        else:
            self._groups[key] = UnknownFailure(
                signature, failure, versions=tuple(sorted(versions.items()))
            )

    def complete(self, completed: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Add to the versions of each group those that only later lines name."""
        for group in self._groups.values():
            group.versions = tuple(sorted(completed(dict(group.versions)).items()))

    def ranked(self) -> RankedFailures:
        """Return the root cause, other failures, and what follows from them."""
        groups = self._without_repetitions()
        for group in groups:
            version = dict(group.versions).get("vllm", "")
            group.diagnosed = diagnose(group.failure, version)
            group.look = "" if group.diagnosed else look_elsewhere(group.failure)
        causes = [group for group in groups if not group.look]
        follow_ups = tuple(group for group in groups if group.look)
        causes = list(_without_chains(causes))
        if not causes:
            return RankedFailures(follow_ups=follow_ups)
        root = min(causes, key=_rank)
        if root.failure.form is FailureForm.HINT and follow_ups:
            return RankedFailures(follow_ups=follow_ups)
        others = [g for g in causes if g is not root and _is_beside(g, root)]
        return RankedFailures(root, tuple(others[:_MAX_KEPT]), follow_ups)

    def _without_repetitions(self) -> list[UnknownFailure]:
        """Return the groups in the order of the log, those with the same text merged: a traceback
        and the line that an outer process logs about it."""
        merged: dict[str, UnknownFailure] = {}
        for group in sorted(self._groups.values(), key=lambda group: group.line):
            text = group.failure.text
            words = _VARIABLE.sub("", text.partition(": ")[2] or text)[:80].strip(" '\"`)")
            name = f"{group.failure.name}: {words}" if len(words) > 12 else str(group.signature)
            first = merged.setdefault(name, group)
            if first is group:
                continue
            first.count += group.count
            if group.failure.form > first.failure.form:
                group.count = first.count
                merged[name] = group
        return sorted(merged.values(), key=lambda group: group.line)


def _rank(group: UnknownFailure) -> tuple[bool, int, int]:
    """Return what sorts the likeliest root cause first: a traceback, then a line with a known
    cause, then other lines."""
    form = group.failure.form
    is_known_line = group.diagnosed is not None and form < FailureForm.TRACEBACK
    return form < FailureForm.TRACEBACK and not is_known_line, -form, group.line


def _is_beside(group: UnknownFailure, root: UnknownFailure) -> bool:
    """Return whether it is worth a look beside the root cause: as certain a failure, of another
    kind."""
    return (
        group.failure.form >= max(FailureForm.LINE, root.failure.form)
        and group.signature.exception != root.signature.exception
    )


def _without_chains(groups: list[UnknownFailure]) -> Iterator[UnknownFailure]:
    """Yield one group for each chain of exceptions: the one that says most about the cause."""
    members = {id(group.failure): group for group in groups}
    absorbed: set[int] = set()
    for group in reversed(groups):
        chain = group.failure.chain()
        if id(group.failure) in absorbed or len(chain) == 1:
            continue
        present = [members[id(f)] for f in chain if id(f) in members]
        best = min(present, key=lambda g: (g.diagnosed is None, _is_vague(g), g.line))
        absorbed |= {id(g.failure) for g in present if g is not best}
        best.failure.outermost = group.failure
    yield from (group for group in groups if id(group.failure) not in absorbed)


def _is_vague(group: UnknownFailure) -> bool:
    return group.signature.exception in _VAGUE or not group.failure.message
