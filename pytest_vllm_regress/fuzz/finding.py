"""Findings as files: one envelope for all hunters, with the question and the problem of each.

When are two findings the same? If title and ``identity`` agree, which make the file's name. A
campaign also leaves out a problem that a known finding ``explains``: one of the same group, in a
question that has at least its ``traits``.

A file has everything that is needed to ask again, in another environment and on another machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from ..util.codec import Document, Meta, encode, replace
from ..util.files import write_atomically
from ..util.masking import mask

MAX_BYTES = 1 << 20
MAX_WORDS = 4000
_FIRST = ("format", "hunter", "command", "environment", "versions", "seed", "question", "problem")
"""The order in which people read a file; the rest follows."""
Line = Annotated[str, Meta(max_length=300)]


class ReplayAnswer(StrEnum):
    """Result of a replay."""

    STILL_FAILS = "STILL FAILS"
    FIXED = "FIXED"
    CANNOT_RUN = "CANNOT RUN"


class Problem(Document, frozen=True):
    """What is wrong with the answer to a question.

    Attributes:
        kind: in a few words; problems of one kind may have several causes.
        words: what was observed, in one line.
        key: tells problems of one kind apart, as far as the hunter can.
        text: the text that shows it, if it is a part of the question.
        traceback: the exception that is its cause, with vLLM's own calls; empty if none was logged.
        at: where in the question it was noticed. A file does not have it.
    """

    kind: Annotated[str, Meta(min_length=1, max_length=300)]
    words: Annotated[str, Meta(max_length=MAX_WORDS)] = ""
    key: Annotated[str, Meta(max_length=500)] = ""
    text: Annotated[str, Meta(max_length=40000)] | None = None
    traceback: Annotated[str, Meta(max_length=6000)] = ""
    at: int | None = None

    @property
    def group(self) -> tuple[str, str]:
        """Problems of one group are the same problem, for a reduction and a replay."""
        return self.kind, self.key

    def __str__(self) -> str:
        return f"{self.kind} ({self.key})" if self.key else self.kind

    def stored(self) -> Problem:
        """Return the problem as a file has it: masked, and of bounded length."""
        return replace(
            self,
            words=mask(self.words)[:MAX_WORDS],
            traceback=mask(self.traceback)[-6000:],
            at=None,
        )


class UpstreamSearch(Document, frozen=True, omit_defaults=False):
    """What upstream knows of a finding. ``words``: what was searched for.

    ``reports``: reports of it; empty if none was found.
    """

    words: tuple[Line, ...] = ()
    reports: tuple[Line, ...] = ()


class Finding(Document, frozen=True, omit_defaults=False, kw_only=True, tag_field="hunter"):
    """A question in its smallest form, and the problem that it shows. Each hunter has a subclass.

    Attributes:
        environment: the environment that showed it.
        versions: its packages, as far as they matter.
        seed: seed of the campaign that found it.
        releases: answer of a replay by version of vLLM.
    """

    allowed: ClassVar[Sequence[str]] = ()
    """Allowed kinds of problems; empty for all."""
    format: Literal[2] = 2
    environment: Annotated[str, Meta(min_length=1, max_length=300)]
    versions: Annotated[Mapping[str, str], Meta(max_length=50)]
    seed: int = 0
    question: Any
    problem: Problem
    releases: Annotated[Mapping[str, ReplayAnswer], Meta(max_length=200)] = {}
    upstream: UpstreamSearch = UpstreamSearch()

    @property
    def hunter(self) -> str:
        """Name of the hunter."""
        return str(self.__struct_config__.tag)

    def __post_init__(self) -> None:
        if self.allowed and self.problem.kind not in self.allowed:
            allowed = ", ".join(self.allowed)
            raise ValueError(f"problem.kind {self.problem.kind!r}: allowed: {allowed}")

    @property
    def subject(self) -> str:
        """What the finding is about, in a file name."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """Subject and kind of problem, in a file name."""
        return f"{self.subject}-{hyphenated(self.problem.kind)}"

    @property
    def identity(self) -> object:
        """What tells it from other findings of the same title, as JSON values."""
        raise NotImplementedError

    @staticmethod
    def traits(question: Any) -> frozenset[str]:
        """Return what causes of problems of one group are told apart by."""
        return frozenset()

    def explains(self, question: Any, problem: Problem) -> bool:
        """Return whether a problem is probably this one: of the same group, in a question with at
        least the same traits."""
        same = self.problem.group == problem.group
        return same and self.traits(self.question) <= self.traits(question)

    @property
    def name(self) -> str:
        """File name: the title, and a short digest of what tells the finding from others."""
        identity = self.identity
        content = identity if isinstance(identity, str) else json.dumps(identity)
        return f"{self.title}-{hashlib.sha256(content.encode()).hexdigest()[:6]}.json".lower()

    def text(self) -> str:
        """Return the file's content."""
        command = f"vllm-regress fuzz replay {self.name}"
        document = {"command": command, **encode(self)}
        document = {name: document.pop(name) for name in _FIRST} | document
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"  # markers are readable
        return text.encode(
            "utf-8", "backslashreplace"
        ).decode()  # JSON's escape of a lone surrogate

    def save(self, folder: Path) -> Path:
        """Write the file, replacing an earlier file of the same failure, and return its path."""
        path = folder / self.name
        write_atomically(path, self.text())
        return path


def hyphenated(text: str) -> str:
    """Return text as a part of a file name."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)
