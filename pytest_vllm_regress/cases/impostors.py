"""Impostors: failures that are not a case's own. None of them may earn its verdict. Pure: what is tried, and what it says."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import re
import re._parser as re_parser  # what the module re parses patterns with; it has no public name
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import Kind, UsageError
from ..util.documents import parse_json
from ..util.files import read_bounded, write_whole
from .model import Case
from .symptom import search
from .verdict import Verdict

_MAX_BYTES = 16 * 1024 * 1024


class Impostor(enum.StrEnum):
    """What is done to every request of a test instead of what the case is about. Those that end the engine come last."""

    UNRELATED_EXCEPTION = "unrelated exception"
    WRONG_ARGUMENT = "wrong argument"
    EMPTY_ANSWER = "empty answer"
    ERROR_STATUS = "error status"
    FLOODED_LOG = "flooded log"
    ENGINE_STOPPED = "engine stopped"
    ENGINE_KILLED = "engine killed"


LEAST = 6
"""Impostors that a proof must have rejected, on each side. Only a server has an error status."""
FOOLED = frozenset({Verdict.REPRODUCED, Verdict.REGRESSED})
PASSED = frozenset({Verdict.FIXED, Verdict.UNEXPECTEDLY_FIXED})
UNRELATED = "max_tokens must be at least 1, got -5"
"""The words of the unrelated exception: those of a request that any version refuses."""
_OWN: Mapping[Kind, Impostor] = MappingProxyType(
    {
        Kind.EXCEPTION: Impostor.UNRELATED_EXCEPTION,
        Kind.WRONG_RESULT: Impostor.EMPTY_ANSWER,
        Kind.HANG: Impostor.ENGINE_STOPPED,
        Kind.CRASH: Impostor.ENGINE_KILLED,
        Kind.ENGINE_DEATH: Impostor.ENGINE_KILLED,
    }
)


@dataclasses.dataclass(frozen=True)
class Trial:
    """What one impostor earned: of this test of a case, in this environment."""

    case: str
    environment: str
    test: str
    impostor: Impostor
    verdict: Verdict
    reason: str

    @property
    def fault(self) -> str:
        """Why the case is not proven by this trial; empty where the impostor was rejected."""
        if self.verdict in FOOLED:
            return f"{self.environment}: an impostor ({self.impostor}) earned {self.verdict.value}: {self.reason}"
        if self.impostor is Impostor.EMPTY_ANSWER and self.verdict in PASSED:
            return f"{self.environment}: {self.test} passes on empty answers: it asserts too little"
        return ""


def in_its_own_way(case: Case) -> Impostor:
    """The impostor that fails in the way of this case: with its kind, and nothing else of it."""
    return _OWN[case.symptom.kinds[0]]


def flood(case: Case, cases: Iterable[Case]) -> str:
    """What a log may hold of other failures: for every other case a text that its pattern matches, and this one's does not."""
    others = (sample(each.symptom.pattern) for each in cases if each.id != case.id)
    return "\n".join(text for text in others if text and search(case.symptom.pattern, text) is None)


@functools.cache
def sample(pattern: str) -> str:
    """A simple text that a case's pattern matches, the same every time; empty where none was found."""
    text = _simplest(re_parser.parse(pattern, re.MULTILINE))
    return text if search(pattern, text) is not None else ""


def _simplest(parsed: Iterable[tuple[Any, Any]]) -> str:
    """The first alternative, the fewest repeats, the first member of a class."""
    text = ""
    for operation, argument in parsed:
        match str(operation):
            case "LITERAL":
                text += chr(argument)
            case "ANY" | "NOT_LITERAL":
                text += "x"
            case "IN":
                text += _member(argument)
            case "BRANCH":
                text += _simplest(argument[1][0])
            case "SUBPATTERN":
                text += _simplest(argument[-1])
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                text += _simplest(argument[2]) * argument[0]
    return text


def _member(members: list[tuple[Any, Any]]) -> str:
    names = [str(operation) for operation, _ in members]
    if "NEGATE" in names:
        return "x"
    operation, argument = members[0]
    match str(operation):
        case "LITERAL":
            return chr(argument)
        case "RANGE":
            return chr(argument[0])
    return {"CATEGORY_DIGIT": "0", "CATEGORY_SPACE": " "}.get(str(argument), "x")


def counted(trials: Iterable[Trial], case_id: str) -> dict[str, int]:
    """How many impostors were rejected in each environment."""
    told: dict[str, set[Impostor]] = {}
    for trial in trials:
        if trial.case == case_id:
            told.setdefault(trial.environment, set())
            if not trial.fault:
                told[trial.environment].add(trial.impostor)
    return {environment: len(names) for environment, names in told.items()}


def write(path: Path, trials: Sequence[Trial]) -> None:
    """Write ``path`` whole or not at all."""
    plain = [{**dataclasses.asdict(each), "verdict": each.verdict.value} for each in trials]
    write_whole(path, json.dumps(plain, indent=1) + "\n")


def read(path: Path) -> tuple[Trial, ...]:
    """What ``write`` wrote. Raises ``UsageError`` for anything else."""
    try:
        found: list[dict[str, Any]] = parse_json(read_bounded(path, _MAX_BYTES, what="a record of impostors"))
        return tuple(
            Trial(**{**each, "impostor": Impostor(each["impostor"]), "verdict": Verdict(each["verdict"])})
            for each in found
        )
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path}: no record of impostors can be read from it: {error}") from None
