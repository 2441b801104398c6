"""Differences between the answers to the exercise of two environments."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Answers = Mapping[str, Any]
"""Answers, states and counters by name: station, act and request."""
ERROR, LEFTOVERS, FAILED = "error", "leftovers", "failed"
"""Members of an answer that report a failure; ``failed``: a stream had an error."""
_ORDER = (
    ERROR,
    "status",
    LEFTOVERS,
    "exit",
    "finished",
    "finish",
    "finish_reason",
    "stop",
    "tokens",
    "text",
    "data",
    "value",
    "body",
    "sums",
    "outputs",
    "logprobs",
    "sum",
)
"""Members that are shown first if they differ."""
_LAST = ("steps", "states", "metrics", "order", "cached")
_MAX_SHOWN = 90
_AROUND = 20


class Grade(enum.IntEnum):
    """How clearly a difference is a fault. ``BREAKS``: an error, a hang, a crash or something left
    where there was an answer. ``RESULT``: another answer. ``COURSE``: the same answer, reached in
    another way."""

    BREAKS = 0
    RESULT = 1
    COURSE = 2


@dataclass(frozen=True, order=True)
class Difference:
    """One answer that differs. ``where``: the path of the first member that does."""

    grade: Grade
    name: str
    where: str
    before: str
    after: str

    @property
    def group(self) -> tuple[Grade, str, str]:
        """Station and member, which differences of one cause often share."""
        member = "".join(letter for letter in self.where if not letter.isdigit())
        return self.grade, self.name.partition("/")[0], member

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "grade": self.grade.name.lower()}


def differences(before: Answers, after: Answers) -> list[Difference]:
    """Return how each answer differs, the clearest first. What is None in ``before`` is not
    compared."""
    return sorted(
        difference(
            name, before.get(name, {}), after[name] if name in after else _missing(name, after)
        )
        for name in dict.fromkeys((*before, *after))
        if before.get(name, {}) is not None and before.get(name) != after.get(name)
    )


def _missing(name: str, after: Answers) -> Any:
    """Return the error that explains a missing answer."""
    act = name.partition("/")[0]
    for place in (f"{act}/start", f"{act}/end", "start", *after):
        if place in after and place.endswith(("start", "end")) and _is_fault(after[place]):
            return after[place]
    return {ERROR: ["no answer", ""]}


def difference(name: str, before: Any, after: Any) -> Difference:
    """Return how two different answers differ."""
    where, old, new = next(_different(before, after), ("", before, after))
    grade = Grade.RESULT
    if (_is_fault(after) and not _is_fault(before)) or _keeps_more(before, after):
        grade = Grade.BREAKS
    elif where.partition(".")[0].partition("[")[0] in _LAST:
        grade = Grade.COURSE
    return Difference(grade, name, where, *_shown(old, new))


def clearest(found: Iterable[Difference], count: int) -> list[Difference]:
    """Return the clearest differences, one of each group first."""
    listed = list(found)
    firsts = {one.group: one for one in reversed(listed)}
    chosen = sorted(firsts.values())
    return [*chosen, *(one for one in listed if one not in chosen)][:count]


def _is_fault(answer: Any) -> bool:
    """Return whether an answer is an error or a refusal."""
    if not isinstance(answer, Mapping):
        return False
    status = answer.get("status")
    refused = isinstance(status, int) and status >= 400
    ended = any(one.get("finish") == ERROR for one in answer.get("outputs") or ())
    return refused or ended or bool(answer.get(ERROR) or answer.get(FAILED))


def _keeps_more(before: Any, after: Any) -> bool:
    """Return whether something is left in an engine that was not, or more of it."""
    old, new = (
        (side.get(LEFTOVERS) or {}) if isinstance(side, Mapping) else {} for side in (before, after)
    )
    return any(count > old.get(name, 0) for name, count in new.items())


def _different(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the places at which two values differ, the most telling member first."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}, key=_rank):
            inner = f"{path}.{key}" if path else str(key)
            yield from _different(before.get(key), after.get(key), inner)
    elif isinstance(before, list) and isinstance(after, list):
        for at in range(max(len(before), len(after))):
            old, new = (side[at] if at < len(side) else None for side in (before, after))
            yield from _different(old, new, f"{path}[{at}]")
    else:
        yield path, before, after


def _rank(key: str) -> tuple[int, str]:
    if key in _ORDER:
        return _ORDER.index(key), key
    return len(_ORDER) + (key in _LAST), key


def _shown(before: Any, after: Any) -> tuple[str, str]:
    """Return both values; long texts begin shortly before the first difference."""
    texts = [
        one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
        for one in (before, after)
    ]
    pairs = enumerate(zip(*texts, strict=False))
    at = next((number for number, (a, b) in pairs if a != b), min(map(len, texts)))
    start = max(0, at - _AROUND) if max(map(len, texts)) > _MAX_SHOWN else 0
    a, b = (
        ("…" if start else "")
        + text[start : start + _MAX_SHOWN]
        + ("…" if text[start + _MAX_SHOWN :] else "")
        for text in texts
    )
    return a, b
