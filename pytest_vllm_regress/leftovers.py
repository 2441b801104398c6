"""What runs whose controller is gone left behind: found by their run directories, ended, removed. Nothing else is touched."""

from __future__ import annotations

from . import family
from .rundir import abandoned_runs


def sweep() -> tuple[str, ...]:
    """End the processes and remove the directories of abandoned runs; returns a line about each."""
    said = []
    for abandoned in abandoned_runs():
        processes = family.tagged(abandoned.run.tag)
        family.end(processes, grace_s=0.0)
        abandoned.run.remove()
        named = "".join(f"; ended {family.describe(each)}" for each in processes)
        said.append(f"removed {abandoned.run.path}, left by process {abandoned.controller_pid}, which is gone{named}")
    return tuple(said)
