"""Jobs divided among machines that share nothing: every machine makes the same division and takes its part."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
import statistics
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any

from ..cases import proof
from ..cases.model import Case
from ..errors import UsageError
from .runner import Job

MOST = 256
ENVIRONMENT_S = 60.0
"""What an environment costs beside its cases: it is installed, and vLLM imported."""
UNKNOWN_S = 30.0
"""What a case takes of which nothing is recorded."""
BATCH_S = (60.0, 600.0)
"""Recorded seconds of a part of an environment's cases, at least and at most: short enough to run beside others, long enough to be worth a start."""
LONG_S = 240.0
"""Recorded seconds from which a case is worth several imports of vLLM."""

Seconds = Callable[[Case, str], float]


class System(StrEnum):
    """Whose job matrix is printed."""

    GITHUB = "github"
    BUILDKITE = "buildkite"


@dataclasses.dataclass(frozen=True)
class Shard:
    """Part ``number`` (from 1) of ``count``."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From ``2/8``. Raises ``UsageError``."""
        found = re.fullmatch(r"(\d{1,3})/(\d{1,3})", text)
        if found and 1 <= int(found[1]) <= int(found[2]) <= MOST:
            return cls(int(found[1]), int(found[2]))
        raise UsageError(f"--shard {text!r}: allowed are 1/N to N/N with N up to {MOST}, for example 2/8")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def recorded(case: Case, environment: str) -> float:
    """Seconds that the case took there when it was proven; the median of its environments where it was not proven there."""
    path = case.directory / proof.FILE
    known = {each.environment: each.seconds for each in proof.read(path).environments} if path.exists() else {}
    took = [seconds for seconds in known.values() if seconds]
    return known.get(environment) or (statistics.median(took) if took else UNKNOWN_S)


def divide(jobs: Sequence[Job], count: int, seconds: Seconds = recorded) -> tuple[tuple[Job, ...], ...]:
    """``count`` parts that take about as long as each other, the same on every machine.

    An environment is divided only where it is longer than a part.
    """
    whole = sum(_cost(job, seconds) for job in jobs) / count
    pieces = [piece for job in jobs for piece in cut(job, whole, seconds)]
    parts: list[dict[str, Job]] = [{} for _ in range(count)]
    loads = [0.0] * count
    for piece in sorted(pieces, key=lambda each: (-_cost(each, seconds), each.environment, each.cases[0].id)):
        at = min(range(count), key=lambda number: (loads[number], number))
        before = parts[at].get(piece.environment)
        parts[at][piece.environment] = (
            dataclasses.replace(piece, cases=(*before.cases, *piece.cases)) if before else piece
        )
        loads[at] += _cost(piece, seconds) - (ENVIRONMENT_S if before else 0.0)
    order = [job.environment for job in jobs]
    return tuple(tuple(sorted(part.values(), key=lambda job: order.index(job.environment))) for part in parts)


def take(jobs: Sequence[Job], text: str | None) -> tuple[Job, ...]:
    """The jobs of one shard (``2/8``); all for None. Raises ``UsageError``."""
    if text is None:
        return tuple(jobs)
    shard = Shard.parse(text)
    return divide(jobs, shard.count)[shard.number - 1]


def job_matrix(
    system: System, jobs: Sequence[Job], count: int, command: Sequence[str], pytest_args: Sequence[str] = ()
) -> dict[str, Any]:
    """What ``system`` reads to start a machine for each part that has something to do: ``command`` with the part's number."""
    tail = ["--", *pytest_args] if pytest_args else []
    parts = []
    for number, part in enumerate(divide(jobs, count), 1):
        if not part:
            continue
        shard, results = str(Shard(number, count)), f"results/shard-{number}.json"
        parts.append(
            {
                "shard": shard,
                "results": results,
                "environments": [job.environment for job in part],
                "minutes": math.ceil(sum(_cost(job, recorded) for job in part) / 60),
                "command": shlex.join([*command, "--shard", shard, "--results", results, *tail]),
            }
        )
    if system is System.GITHUB:
        return {"include": parts}
    return {
        "steps": [
            {"label": f"vllm-regress {each['shard']}", "command": each["command"], "artifact_paths": [each["results"]]}
            for each in parts
        ]
    }


def batches(jobs: Sequence[Job], slots: int, seconds: Seconds = recorded) -> Iterator[tuple[Job, Job]]:
    """Each job with its parts, which share ``slots`` evenly. Where slots are machines, each that gets a part builds the environment."""
    total = sum(seconds(case, job.environment) for job in jobs for case in job.cases)
    length = min(max(total / max(2 * slots, 1), BATCH_S[0]), BATCH_S[1])
    return ((job, part) for job in jobs for part in cut(job, ENVIRONMENT_S + length, seconds))


def with_workers(jobs: Sequence[Job], seconds: Seconds = recorded) -> list[Job]:
    """The jobs; one of a single case that takes long, and longer than all the others together, gets two workers, three where there are no others:
    most of that time it waits."""
    lengths = [sum(seconds(case, job.environment) for case in job.cases) for job in jobs]
    return [
        dataclasses.replace(job, workers="2" if jobs[1:] else "3")
        if len(job.cases) == 1 and length >= LONG_S and length > sum(lengths) / 2
        else job
        for job, length in zip(jobs, lengths, strict=True)
    ]


def _cost(job: Job, seconds: Seconds) -> float:
    return ENVIRONMENT_S + sum(seconds(case, job.environment) for case in job.cases)


def cut(job: Job, whole: float, seconds: Seconds) -> list[Job]:
    """The job in as few pieces as its length asks for, each about as long as the others."""
    count = min(
        len(job.cases), max(1, math.ceil((_cost(job, seconds) - ENVIRONMENT_S) / max(whole - ENVIRONMENT_S, 1.0)))
    )
    pieces: list[list[Case]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for case in sorted(job.cases, key=lambda each: (-seconds(each, job.environment), each.id)):
        at = min(range(count), key=lambda number: (loads[number], number))
        pieces[at].append(case)
        loads[at] += seconds(case, job.environment)
    return [
        dataclasses.replace(job, cases=tuple(case for case in job.cases if case in piece), part=number)
        for number, piece in enumerate(pieces)
        if piece
    ]
