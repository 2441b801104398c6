"""Divide batches among machines that share nothing: every machine makes the same division and runs
its own shard."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ..errors import UsageError
from .batch import Batch
from .plan import ENVIRONMENT_S, Seconds, batch_seconds, recorded_seconds, split_batch

MAX_SHARDS = 256


class CiSystem(StrEnum):
    """A CI system whose job matrix can be printed."""

    GITHUB = "github"
    BUILDKITE = "buildkite"
    GITLAB = "gitlab"


GITLAB_SETTINGS = ".gitlab/vllm-regress.yml"
"""File of the user's repository with the job ``.vllm-regress``, which the jobs of a child pipeline
extend: it inherits nothing from its parent."""


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` (from 1) of ``count``."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a text such as ``2/8``. Raises ``UsageError``."""
        match = re.fullmatch(r"(\d{1,3})/(\d{1,3})", text)
        if match and 1 <= int(match[1]) <= int(match[2]) <= MAX_SHARDS:
            return cls(int(match[1]), int(match[2]))
        raise UsageError(
            f"--shard {text!r}: allowed are 1/N to N/N with N up to {MAX_SHARDS}, for example 2/8"
        )

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def divide_into_shards(
    batches: Sequence[Batch], count: int, seconds: Seconds = recorded_seconds
) -> tuple[tuple[Batch, ...], ...]:
    """Divide the batches into ``count`` shards that take similar time. The division is the same on
    every machine.

    An environment is split only if it takes longer than a shard.
    """
    shard_s = sum(batch_seconds(batch, seconds) for batch in batches) / count
    parts = [part for batch in batches for part in split_batch(batch, shard_s, seconds)]
    shards: list[dict[str, Batch]] = [{} for _ in range(count)]
    loads = [0.0] * count
    for part in sorted(
        parts, key=lambda part: (-batch_seconds(part, seconds), part.environment, part.cases[0].id)
    ):
        least = min(range(count), key=lambda number: (loads[number], number))
        earlier = shards[least].get(part.environment)
        shards[least][part.environment] = (
            replace(part, cases=(*earlier.cases, *part.cases)) if earlier else part
        )
        loads[least] += batch_seconds(part, seconds) - (ENVIRONMENT_S if earlier else 0.0)
    order = [batch.environment for batch in batches]
    return tuple(
        tuple(sorted(shard.values(), key=lambda batch: order.index(batch.environment)))
        for shard in shards
    )


def take_shard(batches: Sequence[Batch], text: str | None) -> tuple[Batch, ...]:
    """Return the batches of one shard (``2/8``); all for None. Raises ``UsageError``."""
    if text is None:
        return tuple(batches)
    shard = Shard.parse(text)
    return divide_into_shards(batches, shard.count)[shard.number - 1]


def shard_count(text: str | None, default: int) -> int:
    """Return the number of shards (``8``) to divide into. Raises ``UsageError``."""
    if text is None:
        return default
    if text.isdecimal() and 1 <= int(text) <= MAX_SHARDS:
        return int(text)
    raise UsageError(
        f"--shard {text!r}: a job matrix has all shards, so give only their number, for example 8"
    )


def ci_job_matrix(
    system: CiSystem,
    batches: Sequence[Batch],
    count: int,
    command: Sequence[str],
    pytest_args: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what ``system`` reads to start a job for each shard that is not empty:

    ``command`` with the shard's number.
    """
    tail = ["--", *pytest_args] if pytest_args else []
    jobs = []
    for number, batches_of_shard in enumerate(divide_into_shards(batches, count), 1):
        if not batches_of_shard:
            continue
        shard, results = str(Shard(number, count)), f"results/shard-{number}.json"
        jobs.append(
            {
                "shard": shard,
                "results": results,
                "environments": [batch.environment for batch in batches_of_shard],
                "minutes": math.ceil(
                    sum(batch_seconds(batch, recorded_seconds) for batch in batches_of_shard) / 60
                ),
                "command": shlex.join([*command, "--shard", shard, "--out", results, *tail]),
            }
        )
    if system is CiSystem.GITHUB:
        return {"include": jobs}
    if system is CiSystem.GITLAB:
        pipeline = {f"vllm-regress {job['shard']}": _gitlab_job(job) for job in jobs}
        return {"include": [{"local": GITLAB_SETTINGS}], **pipeline}
    return {
        "steps": [
            {
                "label": f"vllm-regress {job['shard']}",
                "command": job["command"],
                "artifact_paths": [job["results"]],
            }
            for job in jobs
        ]
    }


def _gitlab_job(job: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "extends": ".vllm-regress",
        "script": [job["command"]],
        "artifacts": {"when": "always", "paths": [job["results"]]},
    }
