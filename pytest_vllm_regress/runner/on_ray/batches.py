"""How jobs are cut for a cluster. Needs no Ray."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..runner import Job
from ..shards import ENVIRONMENT_S, Seconds, cut, recorded

LENGTH_S = (60.0, 600.0)
"""Recorded seconds of a batch, at least and at most: short enough to share the cluster, long enough to be worth a start."""


def batches(jobs: Sequence[Job], slots: int, seconds: Seconds = recorded) -> Iterator[tuple[Job, Job]]:
    """Each job with its parts, which share ``slots`` evenly. An environment is built on every node that has a part of it."""
    total = sum(seconds(case, job.environment) for job in jobs for case in job.cases)
    length = min(max(total / max(2 * slots, 1), LENGTH_S[0]), LENGTH_S[1])
    return ((job, part) for job in jobs for part in cut(job, ENVIRONMENT_S + length, seconds))
