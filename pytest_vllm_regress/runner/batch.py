"""A batch of cases that run in one environment, the options of a run, and its outcome (with the
exit code: ``RunOutcome.exit_code``)."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ..cases.proofs.proof import AFFECTED
from ..errors import Kind
from ..util.sizes import GIB

if TYPE_CHECKING:
    from ..cases.model import Case
    from ..cases.results import RunResult


_NEEDS_TERMINAL = frozenset({"--pdb", "--trace", "-s", "--capture=no"})
"""Arguments for pytest with which its output must be seen at once."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Cases that run in one environment, in one pytest process.

    ``roles`` maps a case's id to the side of its evidence ("affected" or "fixed") that it must show
    there. Cases without a role have no expectation.
    ``part`` numbers the batches of an environment whose cases are split. ``workers``: pytest-xdist
    workers, unless the options name a number.
    """

    environment: str
    cases: tuple[Case, ...]
    roles: Mapping[str, str]
    part: int = 0
    workers: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Identifies the batch within a run."""
        return self.environment, self.part

    @property
    def hangs(self) -> bool:
        """Whether a case must show a documented hang: then the batch mostly waits, and uses little
        CPU time."""
        return any(
            self.roles.get(case.id) == AFFECTED and Kind.HANG in case.symptom.kinds
            for case in self.cases
        )

    def only(self, case_ids: set[str]) -> Batch:
        """Return the batch with only these cases."""
        return dataclasses.replace(
            self, cases=tuple(case for case in self.cases if case.id in case_ids)
        )

    def without(self, case_ids: set[str]) -> Batch:
        """Return the batch without these cases."""
        return self.only({case.id for case in self.cases} - case_ids)

    def __str__(self) -> str:
        return f"{self.environment}: {', '.join(case.id for case in self.cases)}"


class BatchState(StrEnum):
    """State of a batch, or of some of its cases."""

    STARTED = "started"
    """The batch was taken up; there are no results yet."""
    FINISHED = "finished"
    """The cases in the update have their results."""
    UNBUILT = "unbuilt"
    """The environment cannot be built, on any machine."""
    LOST = "lost"
    """The machine failed, which says nothing about the cases."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """Resources reserved for a batch while it runs.

    ``memory_bytes`` is for the engines of one environment, ``disk_bytes`` free space beside the
    cache.
    """

    cores: float = 2
    gpus: int = 0
    memory_bytes: int = 6 * GIB
    disk_bytes: int = GIB


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options that all batches of a run share. ``pytest_args`` come last on pytest's command line.

    ``cases_dir``: the directory of cases if the user named one, for commands that repeat a run.
    ``verbose``: show all of pytest's output as it is written.
    """

    device: str | None = None
    workers: str | None = None
    pytest_args: tuple[str, ...] = ()
    cases_dir: Path | None = None
    verbose: bool = False

    @property
    def live(self) -> bool:
        """Whether pytest's output is shown as it is written: with -v, or if an argument for pytest
        needs the terminal."""
        return self.verbose or not _NEEDS_TERMINAL.isdisjoint(self.pytest_args)

    @property
    def asks_for_gpu(self) -> bool:
        """Whether real GPUs are asked for, by --device or by an argument for pytest."""
        return self.device == "gpu" or any(
            argument in ("--vllm-gpu", "--vllm-device=gpu") for argument in self.pytest_args
        )

    def with_pytest_args(self, *arguments: str) -> RunOptions:
        """These options with more arguments for pytest, before the user's own."""
        return dataclasses.replace(self, pytest_args=(*arguments, *self.pytest_args))

    def repeat_command(self, case_id: str, environment: str) -> str:
        """Return the command that runs one case in one environment again."""
        cases_dir = ["--cases", str(self.cases_dir)] if self.cases_dir else []
        device = ["--device", self.device] if self.device else []
        return shlex.join(
            ["vllm-regress", *cases_dir, "run", case_id, "--env", environment, *device]
        )


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """The judged results of a run, the environments that could not be built, and whether the run
    was interrupted."""

    run: RunResult
    unbuilt: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0: all results as expected; 1: some are not; 3: an environment could not be built; 130:
        interrupted."""
        if self.interrupted:
            return 130
        if self.unbuilt:
            return 3
        return 0 if self.run.as_expected else 1
