"""Whether a run shows a failure that another case documents: the sibling of the reported one, which
an obvious test often shows instead."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...cases.model import Case
from ...cases.observation import Observation
from ...errors import Part
from . import log
from .explanation import recorded_failures
from .failures import without_variables
from .tracebacks import LoggedFailure, read_failures

_SEARCHED = (Part.TRACEBACK, Part.EXCEPTION, Part.LOG)
_Signature = tuple[str, str, str]


def same_failures(
    observed: Observation, cases: Sequence[Case], versions: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the ids of those ``cases`` whose documented failure a run shows.

    Either the text is one that only that failure prints, as ``explain`` finds it, or a traceback
    has the exception, the innermost call and the text of a recorded one.
    """
    texts = [observed.parts[part] for part in _SEARCHED if part in observed.parts]
    if not texts:
        return ()
    stream = io.BytesIO("\n".join(texts).encode("utf-8", "replace"))
    about = "\n".join(f"{name} {version}" for name, version in versions.items())
    findings = log.explain(stream, cases, "a test", about).findings
    ids = [finding.case.id for finding in findings if finding.part is not Part.ASSERTION]
    if seen := {signature for text in texts for signature in _signatures(read_failures(text))}:
        ids += [case.id for case in cases if not seen.isdisjoint(_recorded(case))]
    return tuple(dict.fromkeys(ids))


@functools.lru_cache(maxsize=1024)
def _recorded(case: Case) -> frozenset[_Signature]:
    return frozenset(_signatures(recorded_failures(case)))


def _signatures(failures: Iterable[LoggedFailure]) -> Iterator[_Signature]:
    """Yield exception, innermost function and text of each traceback that says what is wrong."""
    for failure in failures:
        # "See the root cause above" follows from any failure.
        if failure.frames and failure.message and not failure.refers:
            yield failure.name, failure.frames[-1].function, without_variables(failure.message)
