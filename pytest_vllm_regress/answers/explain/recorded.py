"""What the recorded observations of a case say about the place where its exception is raised."""

from __future__ import annotations

import dataclasses

from ...cases.model import Case
from ...cases.proofs.rejudge import load_observations
from ...cases.verdict import Verdict
from ...errors import Part, UsageError
from .log_lines import source_of, strip_prefix
from .tracebacks import Failure, TracebackReader


@dataclasses.dataclass(frozen=True)
class RecordedPlaces:
    """Functions of vLLM, as file and name, in the recorded tracebacks of a case.

    ``general``: the exception comes from Python's own library, so that its text says nothing
    without the place.
    """

    functions: frozenset[tuple[str, str]]
    general: bool

    def agrees(self, failure: Failure) -> bool:
        """Return whether the failure passed through one of the functions in which the recorded ones
        were raised."""
        return any(
            (frame.of_vllm, frame.function) in self.functions
            for frame in failure.vllm_frames()[-3:]
        )


def recorded_places(case: Case) -> RecordedPlaces:
    """Return the places of the recorded failures of ``case``; none if nothing readable is recorded."""
    try:
        runs = load_observations(case)
    except UsageError:
        runs = ()
    failures = [
        failure
        for run in runs
        for result in run.results
        if result.verdict is Verdict.REPRODUCED and result.observation is not None
        for part in (Part.TRACEBACK, Part.LOG)
        for failure in read_failures(result.observation.parts.get(part, ""))
    ]
    functions = {
        (frame.of_vllm, frame.function)
        for failure in failures
        for frame in failure.vllm_frames()[-1:]
    }
    general = bool(functions) and all(
        f.frames and f.frames[-1].of_standard_library for f in failures
    )
    return RecordedPlaces(frozenset(functions), general)


def read_failures(text: str) -> list[Failure]:
    """Return the failures whose tracebacks ``text`` contains."""
    reader = TracebackReader()
    lines = (strip_prefix(line) for line in text.splitlines())
    failures = (
        reader.read(source_of(prefix), rest, number)
        for number, (prefix, rest) in enumerate(lines, 1)
    )
    return [failure for failure in failures if failure is not None]
