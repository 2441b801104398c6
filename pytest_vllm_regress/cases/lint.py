"""What can be said against a case without running it: a pattern that is too wide, environments that cannot be, ranges that contradict the proof."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from ..errors import Part
from ..util.paths import DATA
from .impostors import UNRELATED, sample
from .model import Case
from .proof import AFFECTED, Proof
from .symptom import search

ANY_TEXTS = ("", "x", f"ValueError: {UNRELATED}", "INFO 01-01 00:00:00 engine.py:1] the engine is up")
"""Texts that are no documented failure: nothing, a letter, the words of a wrong request, and a line of a sound log."""
SOUND = DATA / "sound"
"""What servers wrote, and their stacks while nothing was asked, by environment and part; written by docs/build_sound_logs.py."""


def warnings(case: Case, cases: Iterable[Case]) -> list[str]:
    """Why the pattern of a case may be earned by something else, and why it cannot be proven; ``cases`` are those beside it."""
    from ..environments.names import not_there

    named = (*case.evidence.affected, *case.evidence.fixed)
    return [
        *(f"{case.path}: symptom.pattern {line}" for line in _wide(case, cases)),
        *(f"{case.path}: evidence: {line}" for name in named if (line := not_there(name, ask=False))),
    ]


def meaningless(case: Case) -> str:
    """Why a proof of the case would prove nothing, whatever its tests see: its pattern matches anything. Empty for a pattern that says something."""
    found = next((text for text in ANY_TEXTS if search(case.symptom.pattern, text) is not None), None)
    if found is None:
        return ""
    return f"matches {found!r}: it says nothing about this failure. Take words that only this failure prints"


def contradictions(case: Case, proof: Proof) -> list[str]:
    """Environments of a proof whose versions say another thing than the case's ranges."""
    wrong = []
    for each in proof.environments:
        affected = case.is_affected(each.versions)
        if bool(affected) != (each.role == AFFECTED):
            wrong.append(f"{each.environment} is {each.role} evidence, but [affected] says: {affected.reason}")
    return wrong


def _wide(case: Case, cases: Iterable[Case]) -> Iterator[str]:
    if why := meaningless(case):
        yield why
        return
    for environment, part, text in _sound():
        span = search(case.symptom.pattern, text) if part in _parts(case) else None
        if span is not None:
            line = text[text.rfind("\n", 0, span[0]) + 1 :].partition("\n")[0]
            yield f"matches the {part} of a sound run of {environment} ({line!r}). Take words that only this failure prints"
    for other in cases:
        text = sample(other.symptom.pattern)
        alike = set(case.symptom.kinds) & set(other.symptom.kinds) and set(case.symptom.phases) & set(
            other.symptom.phases
        )
        if other.id != case.id and alike and text and search(case.symptom.pattern, text) is not None:
            yield f"matches what {other.id} looks like, too ({text!r}): one could be taken for the other"


def _parts(case: Case) -> frozenset[Part]:
    """Where the case's pattern counts."""
    return frozenset(part for kind in case.symptom.kinds for part in case.symptom.parts_for(kind))


@functools.cache
def _sound() -> tuple[tuple[str, Part, str], ...]:
    files = (file for part in Part for file in sorted(SOUND.glob(f"*.{part.value}")))
    return tuple((file.stem, Part(file.suffix[1:]), file.read_text(encoding="utf-8")) for file in files)
