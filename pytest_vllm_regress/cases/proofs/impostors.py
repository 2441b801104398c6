"""Impostors: failures other than the documented one.

None of them may produce the verdict of the case. Pure.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...errors import Kind
from ...util import codec
from ...util.paths import writable_root
from ...util.patterns import search
from ..model import Case
from ..verdict import Verdict

_MAX_BYTES = 16 * 1024 * 1024


class Impostor(enum.StrEnum):
    """A failure injected into every request of a test instead of the documented one.

    Those that end the engine come last.
    """

    UNRELATED_EXCEPTION = "unrelated exception"
    WRONG_ARGUMENT = "wrong argument"
    EMPTY_ANSWER = "empty answer"
    ERROR_STATUS = "error status"
    FLOODED_LOG = "flooded log"
    ENGINE_STOPPED = "engine stopped"
    ENGINE_KILLED = "engine killed"


MIN_REJECTED = 6
"""Number of impostors that a proof must have rejected on each side.

Only a server has an error status.
"""
UNRELATED_MESSAGE = "max_tokens must be at least 1, got -5"
"""Message of the unrelated exception: that of a request which every version rejects."""
_OWN: Mapping[Kind, Impostor] = MappingProxyType(
    {
        Kind.EXCEPTION: Impostor.UNRELATED_EXCEPTION,
        Kind.WRONG_RESULT: Impostor.EMPTY_ANSWER,
        Kind.HANG: Impostor.ENGINE_STOPPED,
        Kind.CRASH: Impostor.ENGINE_KILLED,
        Kind.ENGINE_DEATH: Impostor.ENGINE_KILLED,
    }
)


@dataclass(frozen=True)
class ImpostorRun:
    """Outcome of one impostor for one test of a case in one environment."""

    case: str
    environment: str
    test: str
    impostor: Impostor
    verdict: Verdict
    reason: str
    replaced: tuple[str, ...] = ()
    """The calls of the test whose answers it replaced, in order."""

    @property
    def flaw(self) -> str:
        """Return why the run disproves the case; empty if the impostor was rejected."""
        if self.verdict.shown:
            calls = ", ".join(
                f"{call} ({times} times)" if times > 1 else call
                for call, times in Counter(self.replaced).items()
            )
            where = f" in place of the answer to {calls}" if calls else ""
            return (
                f"{self.environment}: an impostor ({self.impostor}){where} produced "
                f"{self.verdict.value}, so another failure passes for this one: {self.reason}"
            )
        if self.impostor is Impostor.EMPTY_ANSWER and self.verdict.shown is False:
            return (
                f"{self.environment}: {self.test} passes with empty answers: it asserts too little"
            )
        return ""


def impostor_of_kind(case: Case) -> Impostor:
    """Return the impostor that has the case's kind of failure and nothing else in common with it."""
    return _OWN[case.symptom.kinds[0]]


def unrelated_log(case: Case, cases: Iterable[Case]) -> str:
    """Return log text of other failures: for every other case a text that matches its pattern but
    not this case's."""
    texts = (sample_match(other.symptom.pattern) for other in cases if other.id != case.id)
    return "\n".join(text for text in texts if text and search(case.symptom.pattern, text) is None)


@functools.cache
def sample_match(pattern: str) -> str:
    """Return the simplest text that matches the pattern; empty if none was found."""
    from hypothesis import Phase, errors, find, settings
    from hypothesis import strategies as st

    try:
        with _tables_in_cache():
            return find(
                st.from_regex(re.compile(pattern, re.MULTILINE)),
                lambda text: search(pattern, text) is not None,
                settings=settings(
                    max_examples=20, database=None, phases=(Phase.generate, Phase.shrink)
                ),
                random=random.Random(0),
            )
    except (errors.NoSuchExample, errors.Unsatisfiable):
        return ""


@contextlib.contextmanager
def _tables_in_cache() -> Iterator[None]:
    """Let Hypothesis keep its tables of characters in the cache, not in a new folder
    ``.hypothesis`` of the working directory."""
    from hypothesis import configuration

    place: Any = configuration.storage_directory(intent_to_write=False)
    before: Path = getattr(place, "path", place)  # a path in older releases
    configuration.set_hypothesis_home_dir(writable_root() / "hypothesis")
    try:
        yield
    finally:
        configuration.set_hypothesis_home_dir(before)


def write_impostor_runs(path: Path, runs: Sequence[ImpostorRun]) -> None:
    """Write ``path`` atomically."""
    codec.save(path, runs)


def read_impostor_runs(path: Path) -> tuple[ImpostorRun, ...]:
    """Read what ``write_impostor_runs`` wrote. Raises ``UsageError`` for anything else."""
    return codec.load(tuple[ImpostorRun, ...], path, _MAX_BYTES, what="a record of impostors")
