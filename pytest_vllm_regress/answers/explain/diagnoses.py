"""Known causes that are no failures of a release: what is seen, why, and what to do
(``data/diagnoses/NAME.toml``), and failures that only follow from others
(``data/follow_ups.toml``)."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from packaging.version import Version

from ...util import codec
from ...util.codec import Document, Meta
from ...util.paths import DATA
from ...util.versions import alternatives_of, version_of
from ..api_history.option_names import OptionNames
from ..api_history.store import history, intervals
from .case_patterns import required_literals
from .tracebacks import LoggedFailure

_LIMIT = 64 * 1024
_MAX_TEXT = 4_000
Text = Annotated[str, Meta(min_length=1, max_length=1_000)]
_UNITS = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}


class Diagnosis(Document, frozen=True):
    """A known cause. ``{name}`` in a text is a named group of the pattern that matched, or a number
    computed from them."""

    title: Text
    """The cause, in one sentence."""
    why: Text
    do: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """Steps or commands, the most likely to help first."""
    source: Text
    """Where this is documented."""
    seen: tuple[Text, ...] = ()
    """Patterns for "Class: message" of a failure."""
    lines: tuple[Text, ...] = ()
    """Patterns for lines that name no exception. A literal text in each selects the lines."""
    late: bool = False
    """Whether to search the whole log: such a line may come at the very end of a long one."""
    frames: Text = "."
    """Pattern that one of the frames must match, as "FILE:FUNCTION", or the source code."""
    unless: tuple[Text, ...] = ()
    """Patterns for the failure that exclude it."""
    versions: str = ""
    """PEP 440: releases of vLLM in which the advice holds; empty for all."""
    computed: str = ""
    """Name of the function that computes further numbers from the groups."""
    general: bool = False
    """Whether a diagnosis that says more about the same failure is preferred."""
    match: Annotated[tuple[str, ...], Meta(min_length=2)] = ("", "")
    """Texts that it must recognize; for tests."""
    other: Annotated[tuple[str, ...], Meta(min_length=2)] = ("", "")
    """Texts that it must not recognize; for tests."""


@dataclass(frozen=True)
class Diagnosed:
    """A cause as it applies to one failure, with the numbers from its message."""

    name: str
    cause: str
    why: str
    do: tuple[str, ...]
    source: str
    general: bool
    matched: str


class _FollowUp(Document, frozen=True):
    patterns: tuple[str, ...]
    look: str


class _FollowUps(Document, frozen=True, rename={"entries": "follow-up"}):
    entries: tuple[_FollowUp, ...]


@functools.cache
def diagnoses() -> Mapping[str, Diagnosis]:
    """Return all diagnoses, by the name of their file."""
    folder = DATA / "diagnoses"
    return {
        file.stem: codec.load(Diagnosis, file, _LIMIT, what="a diagnosis")
        for file in sorted(folder.glob("*.toml"))
    }


@functools.cache
def _follow_ups() -> tuple[tuple[re.Pattern[str], str], ...]:
    loaded = codec.load(
        _FollowUps, DATA / "follow_ups.toml", _LIMIT, what="the failures that follow from others"
    )
    return tuple((_either(entry.patterns), entry.look) for entry in loaded.entries)


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


def _either(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def look_elsewhere(failure: LoggedFailure) -> str:
    """Return which log to look into if the failure only follows from another one, or an empty
    string."""
    look = look_for_cause(failure.text)
    return _follow_ups()[0][1] if failure.refers and not look else look


def look_for_cause(text: str) -> str:
    """Return which log to look into if ``text`` is that of a failure that only follows from another
    one, or an empty string."""
    return next((look for seen, look in _follow_ups() if seen.search(text[:_MAX_TEXT])), "")


def diagnose(failure: LoggedFailure, version: str = "") -> Diagnosed | None:
    """Return the cause of a failure. ``version``: of vLLM, if the log names it."""
    found = [
        diagnosed
        for name, diagnosis in diagnoses().items()
        if (diagnosed := _apply(name, diagnosis, failure, version)) is not None
    ]
    return min(found, key=lambda d: (d.general, -len(d.matched)), default=None)


def matches_line(text: str) -> bool:
    """Return whether a diagnosis recognizes a line that names no exception."""
    patterns = _line_patterns()
    return any(
        pattern.search(text)
        for literal in [literal for literal in patterns if literal in text]
        for pattern in patterns[literal]
    )


@functools.cache
def _line_patterns() -> Mapping[str, tuple[re.Pattern[str], ...]]:
    """Return the patterns for lines by the texts of which every match contains one."""
    patterns: dict[str, tuple[re.Pattern[str], ...]] = {}
    for diagnosis in diagnoses().values():
        for pattern in diagnosis.lines:
            for literal in required_literals(pattern):
                patterns[literal] = (*patterns.get(literal, ()), _compiled(pattern))
    return patterns


def line_literals(late: bool) -> Iterator[bytes]:
    """Yield texts of which every line of a diagnosis contains one. ``late``: of those that are
    searched in the whole log."""
    for diagnosis in diagnoses().values():
        for pattern in diagnosis.lines if diagnosis.late is late else ():
            yield from (literal.encode() for literal in required_literals(pattern))


def _apply(
    name: str, diagnosis: Diagnosis, failure: LoggedFailure, version: str
) -> Diagnosed | None:
    text = failure.text[:_MAX_TEXT]
    parsed = version_of(version)
    if diagnosis.versions and parsed is not None:
        ranges = alternatives_of(diagnosis.versions) or ()
        if not any(part.contains(parsed.base_version, prereleases=True) for part in ranges):
            return None
    matches = (_compiled(p).search(text) for p in (*diagnosis.seen, *diagnosis.lines))
    match = next(filter(None, matches), None)
    if match is None or any(_compiled(pattern).search(text) for pattern in diagnosis.unless):
        return None
    places = [f"{frame.of_vllm or frame.file}:{frame.function}" for frame in failure.frames]
    if not any(map(_compiled(diagnosis.frames).search, [*places, failure.code or "-"])):
        return None
    values = {key: value for key, value in match.groupdict().items() if value is not None}
    if diagnosis.computed:
        values |= _COMPUTED[diagnosis.computed](values, version)
    cause = _filled(diagnosis.title, values) or diagnosis.title
    return Diagnosed(
        name,
        cause,
        _filled(diagnosis.why, values) or "",
        tuple(step for text in diagnosis.do if (step := _filled(text, values))),
        diagnosis.source,
        diagnosis.general,
        match[0],
    )


def _filled(text: str, values: Mapping[str, str]) -> str | None:
    """Return the text with its values; None if one of them is missing."""
    names = re.findall(r"\{(\w+)\}", text)
    if any(name not in values for name in names):
        return None
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], text)


def _bytes(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * _UNITS.get(unit[:1].upper(), 1.0)


def _kv_cache(values: Mapping[str, str], _: str) -> dict[str, str]:
    """Return the longest context that fits: memory grows in proportion to the length."""
    if not {"needed", "free", "length"} <= values.keys():
        return {}
    needed = _bytes(values["needed"], values.get("needed_unit", "G"))
    free = _bytes(values["free"], values.get("free_unit", "G"))
    if needed <= 0:
        return {}
    fits = int(int(values["length"]) * free / needed) // 16 * 16
    return {"fits": str(fits)} if fits > 0 else {}


def _cached_tokens(values: Mapping[str, str], _: str) -> dict[str, str]:
    return {"fits": values["tokens"]} if values.get("tokens") else {}


def _gpu_share(values: Mapping[str, str], _: str) -> dict[str, str]:
    """Return the largest --gpu-memory-utilization for the free memory, rounded down."""
    if not {"free", "total"} <= values.keys() or float(values["total"]) <= 0:
        return {}
    share = math.floor(100 * float(values["free"]) / float(values["total"])) / 100
    return {"share": f"{share:.2f}"} if share > 0 else {}


def _gpus_needed(values: Mapping[str, str], _: str) -> dict[str, str]:
    return {"double": str(2 * int(values["rank"]))} if values.get("rank", "").isdigit() else {}


def _presence(section: str, name: str, version: str) -> dict[str, str]:
    """Return in which releases the history of vLLM's API has a name: ``since`` the first one after
    ``version``, ``removed`` and ``last`` if it was gone by then, or the ``newest`` known release if
    none has it."""
    known, installed = history(), version_of(version)
    releases = known.releases
    periods = list(intervals(known.table(section).get(name, []), len(releases)))
    if not periods:
        return {"newest": releases[-1]}
    # The history begins with a release that already has most names.
    begins = [start for start, _, _ in periods if start or installed]
    ends = [end for _, end, _ in periods if end < len(releases)]
    since = [n for n in begins if installed is None or Version(releases[n]) > installed]
    gone = [n for n in ends if installed is None or Version(releases[n]) <= installed]
    return {
        **({"since": releases[since[0]]} if since else {}),
        **({"removed": releases[gone[-1]], "last": releases[gone[-1] - 1]} if gone else {}),
    }


def _architecture(values: Mapping[str, str], version: str) -> dict[str, str]:
    name = values.get("architecture")
    return _presence("architectures", name, version) if name else {}


def _option(values: Mapping[str, str], version: str) -> dict[str, str]:
    """Return since when there is an option, or which one resembles a name that none has."""
    if "request" in values or "option" not in values:
        return {}
    word = f"--{values['option'].lstrip('-').replace('_', '-')}"
    names = OptionNames.of(history())
    if name := names.exact(word):
        known = name if name in names.options else name.replace("--no-", "--", 1)
        return {"name": name, **_presence("options", known, version)}
    near = names.near(word)
    return {"near": " or ".join(near[:3])} if near else {}


_COMPUTED: Mapping[str, Callable[[Mapping[str, str], str], dict[str, str]]] = {
    "architecture": _architecture,
    "option": _option,
    "kv-cache": _kv_cache,
    "cached-tokens": _cached_tokens,
    "gpu-share": _gpu_share,
    "lora-rank": _gpus_needed,
}
