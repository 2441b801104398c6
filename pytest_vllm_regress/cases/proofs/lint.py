"""Checks of a case that run nothing: patterns that are too general, impossible environments, ranges
that contradict the proof."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from ...errors import Part
from ...util.files import peek
from ...util.paths import DATA
from ...util.patterns import search
from ..model import Case
from ..results import TestResult
from ..verdict import Verdict
from .impostors import UNRELATED_MESSAGE, sample_match
from .proof import AFFECTED, Proof

UNRELATED_TEXTS = (
    "",
    "x",
    f"ValueError: {UNRELATED_MESSAGE}",
    "INFO 01-01 00:00:00 engine.py:1] the engine is up",
)
"""Texts without a documented failure: an empty one, a letter, the message of an invalid request, a
line of a normal log."""
_MAX_README = 1024 * 1024
SOUND_LOGS = DATA / "sound"
"""Logs of working servers and their stacks while idle, by environment and part; written by
tools/sound_logs.py."""


def lint_case(case: Case, cases: Iterable[Case]) -> list[str]:
    """Return why the pattern of a case may match something else, and why the case cannot be proven.

    ``cases``: all in its directory.
    """
    from ...environments.names import unavailable_reason

    environments = (*case.evidence.affected, *case.evidence.fixed)
    return [
        *(f"{case.path}: symptom.pattern {line}" for line in _unwanted_matches(case, cases)),
        *(f"{case.path}: symptom.log {line}" for line in _unwanted_in_logs(case)),
        *(
            f"{case.path}: evidence: {line}"
            for name in environments
            if (line := unavailable_reason(name, ask=False))
        ),
        *(f"{case.path}: evidence: {line}" for line in _misplaced_evidence(case)),
    ]


def pattern_problem(case: Case) -> str:
    """Return why no proof of the case would be meaningful, because its pattern matches unrelated
    texts; empty if it does not."""
    match = next(
        (text for text in UNRELATED_TEXTS if search(case.symptom.pattern, text) is not None), None
    )
    if match is None:
        return ""
    return f"matches {match!r}, which is not this failure. Use words that only this failure prints"


def readme_problem(case: Case) -> str:
    """Return which sentences of the scaffold its author has not replaced; empty if none is left."""
    readme = peek(case.directory / "README.md", _MAX_README)
    left = [sentence for sentence in _placeholders() if sentence in " ".join(readme.split())]
    return f"README.md still says {left[0]!r}: write it in your own words" if left else ""


@functools.cache
def _placeholders() -> tuple[str, ...]:
    """Return the sentences of the scaffold's README that say what to write."""
    text = (DATA / "texts" / "readme.md.txt").read_text(encoding="utf-8")
    parts = [part for part in text.split("\n\n") if part.startswith("**") and "{{" not in part]
    return tuple(" ".join(part.split("**", 2)[2].split()) for part in parts)


def log_problems(case: Case, results: Iterable[TestResult]) -> list[str]:
    """Return why nobody knows that the failure prints the text of ``[symptom.log]``: no result that
    shows the failure has it, and no report is named."""
    if case.log is None or case.log.seen:
        return []
    shown = [result for result in results if result.verdict is Verdict.REPRODUCED]
    if any(result.observation and case.log.is_in(result.observation) for result in shown):
        return []
    return [
        f"{case.path}: symptom.log: no affected environment printed it; correct the pattern, or "
        "name the report that has the text: seen = ..."
    ]


def range_contradictions(case: Case, proof: Proof) -> list[str]:
    """Return the environments of a proof whose versions contradict the case's ranges."""
    contradictions = []
    for evidence in proof.environments:
        affected = case.is_affected(evidence.versions)
        if bool(affected) != (evidence.role == AFFECTED):
            contradictions.append(
                f"{evidence.environment} is {evidence.role} evidence, but [affected] says: {affected.reason}"
            )
    return contradictions


def _misplaced_evidence(case: Case) -> Iterator[str]:
    """Yield the evidence environments whose names already tell that the case's ranges say
    otherwise."""
    from ...environments.names import versions_named_by

    for name in case.evidence.affected:
        versions = versions_named_by(name)
        for result in (
            affected.check(versions)
            for affected in case.affected
            if affected.is_installed(versions)
        ):
            if not result:
                yield f"{name} is affected evidence, but [affected] says: {result.reason}"
    for name in case.evidence.fixed:
        if result := case.is_affected(versions_named_by(name)):
            yield f"{name} is fixed evidence, but [affected] says: {result.reason}"


def _unwanted_matches(case: Case, cases: Iterable[Case]) -> Iterator[str]:
    if why := pattern_problem(case):
        yield why
        return
    for environment, part, text in _sound_logs():
        span = search(case.symptom.pattern, text) if part in _parts(case) else None
        if span is not None:
            line = text[text.rfind("\n", 0, span[0]) + 1 :].partition("\n")[0]
            yield f"matches the {part} of a normal run of {environment} ({line!r}). Use words that only this failure prints"
    for other in cases:
        text = sample_match(other.symptom.pattern)
        similar = set(case.symptom.kinds) & set(other.symptom.kinds) and set(
            case.symptom.phases
        ) & set(other.symptom.phases)
        if (
            other.id != case.id
            and similar
            and text
            and search(case.symptom.pattern, text) is not None
        ):
            yield f"also matches the failure of {other.id} ({text!r}): one could be mistaken for the other"


def _unwanted_in_logs(case: Case) -> Iterator[str]:
    """Yield what the text of ``[symptom.log]`` matches beside the failure."""
    if case.log is None:
        return
    texts = (*UNRELATED_TEXTS, *(text for _, _, text in _sound_logs()))
    for text in texts:
        if (span := search(case.log.pattern, text)) is not None:
            yield f"matches a normal log ({text[slice(*span)][:200]!r}). Use words that only this failure prints"


def _parts(case: Case) -> frozenset[Part]:
    """Return the parts in which the case's pattern counts."""
    return frozenset(part for kind in case.symptom.kinds for part in case.symptom.parts_for(kind))


@functools.cache
def _sound_logs() -> tuple[tuple[str, Part, str], ...]:
    files = (file for part in Part for file in sorted(SOUND_LOGS.glob(f"*.{part.value}")))
    return tuple(
        (file.stem, Part(file.suffix[1:]), file.read_text(encoding="utf-8")) for file in files
    )
