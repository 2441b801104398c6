"""A batch of cases that run in one environment, the protocol of executors that run batches, the
options of a run, and its outcome (with the exit code: ``RunOutcome.exit_code``).

At the end: expectations, which are applied to results once, where the run was started; and
INCONCLUSIVE results for cases that no test gave a result for."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import signal
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from ..cases.model import Case
from ..cases.proofs.proof import AFFECTED, EXPECTED_VERDICTS
from ..cases.results import RunResult, TestResult, read_appended_results, verdict_of, wall_time
from ..cases.verdict import Verdict
from ..errors import BuildError, Kind, UsageError
from ..util import codec
from ..util.sizes import GIB

_NEEDS_TERMINAL = frozenset({"--pdb", "--trace", "-s", "--capture=no"})
"""Arguments for pytest with which its output must be seen at once."""


HANGING = -1
"""The part of a split environment whose tests wait for documented hangs."""


@dataclass(frozen=True)
class Batch:
    """Cases that run in one environment, in one pytest process.

    ``roles`` maps a case's id to the side of its evidence ("affected" or "fixed") that it must show
    there. Cases without a role have no expectation.
    ``part`` numbers the batches of an environment whose cases are split; ``HANGING`` is that of
    the documented hangs. ``workers``: pytest-xdist workers, unless the options name a number.
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
        return bool(self.hanging_cases)

    @property
    def hanging_cases(self) -> set[str]:
        """The ids of the cases that must show a documented hang."""
        return {
            case.id
            for case in self.cases
            if self.roles.get(case.id) == AFFECTED and Kind.HANG in case.symptom.kinds
        }

    def only(self, case_ids: set[str]) -> Batch:
        """Return the batch with only these cases."""
        return replace(self, cases=tuple(case for case in self.cases if case.id in case_ids))

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


@dataclass(frozen=True)
class Needs:
    """Resources reserved for a batch while it runs.

    ``memory_bytes`` is for the engines of one environment, ``disk_bytes`` free space beside the
    cache.
    """

    cores: float = 2
    gpus: int = 0
    memory_bytes: int = 6 * GIB
    disk_bytes: int = GIB


@dataclass(frozen=True)
class RunOptions:
    """Options that all batches of a run share. ``pytest_args`` come last on pytest's command line.

    ``suite``: the command of the user's own suite, which is run instead of cases.
    ``cases_dir``: the directory of cases if the user named one, for commands that repeat a run.
    ``verbose``: show all of pytest's output as it is written.
    """

    device: str | None = None
    workers: str | None = None
    pytest_args: tuple[str, ...] = ()
    cases_dir: Path | None = None
    verbose: bool = False
    suite: tuple[str, ...] = ()

    @property
    def live(self) -> bool:
        """Whether pytest's output is shown as it is written: with -v, or if an argument for pytest
        needs the terminal."""
        return self.verbose or self.needs_terminal

    @property
    def needs_terminal(self) -> bool:
        """Whether an argument for pytest needs the terminal, which workers do not have."""
        return not _NEEDS_TERMINAL.isdisjoint(self.pytest_args)

    @property
    def asks_for_gpu(self) -> bool:
        """Whether real GPUs are asked for, by --device or by an argument for pytest."""
        return self.device == "gpu" or any(
            argument in ("--vllm-gpu", "--vllm-device=gpu") for argument in self.pytest_args
        )

    def with_pytest_args(self, *arguments: str) -> RunOptions:
        """These options with more arguments for pytest, before the user's own."""
        return replace(self, pytest_args=(*arguments, *self.pytest_args))

    def repeat_command(self, case_id: str, environment: str) -> str:
        """Return the command that runs one case in one environment again."""
        cases_dir = ["--cases", str(self.cases_dir)] if self.cases_dir else []
        device = ["--device", self.device] if self.device else []
        return shlex.join(
            ["vllm-regress", *cases_dir, "run", case_id, "--env", environment, *device]
        )


@dataclass(frozen=True)
class BatchFiles:
    """Where running batches put their reports and their output."""

    directory: Path

    def report(self, batch: Batch) -> Path:
        """The report that the batch's pytest appends to (see ``pytest_run.ReportReader``)."""
        return self.directory / f"{digest(*batch.key)}.part.jsonl"

    def log(self, batch: Batch) -> Path:
        """The output of the batch's pytest."""
        return self.directory / f"{digest(*batch.key)}.log"

    def partial_results(self, batch: Batch) -> RunResult:
        """Return what the batch's pytest has reported, as far as it can be read."""
        try:
            return read_appended_results(self.report(batch))[0]
        except UsageError:
            return RunResult()


@dataclass(frozen=True)
class BatchUpdate:
    """Results of a batch, or of some of its cases. ``last``: there will be no more.

    ``node``: facts of the machine, if it is not this one.
    """

    batch: Batch
    run: RunResult
    state: BatchState = BatchState.FINISHED
    last: bool = True
    node: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def started(cls, batch: Batch) -> BatchUpdate:
        """The update that a batch was taken up."""
        return cls(batch, RunResult(), BatchState.STARTED, last=False)


class Executor(Protocol):
    """Runs batches somewhere."""

    def execute(
        self, batches: Sequence[Batch], options: RunOptions, files: BatchFiles
    ) -> Generator[BatchUpdate | None, None, None]:
        """Run the batches and yield updates as they come, and None now and then so that output can
        be shown.

        Reports and output of running batches go to ``files``. Closing the generator early ends what
        is still running.
        """
        ...


@dataclass(frozen=True)
class RunOutcome:
    """The judged results of a run, the environments that could not be built, and whether the run
    was interrupted. ``lost``: environments in which the machine failed, by a full disk for example:
    that says nothing about the cases, which the same command should run again."""

    run: RunResult
    unbuilt: tuple[str, ...] = ()
    interrupted: bool = False
    lost: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Which exit code does a run end with? 0: all results as expected; 1: some are not, or nothing was decided; 3: an
        environment could not be built; 130: interrupted."""
        if self.interrupted:
            return 130
        if self.unbuilt:
            return 3
        return 0 if self.run.as_expected else 1


def digest(*parts: object) -> str:
    """Return a name for files of what these parts identify."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


_UNEXPLAINED = "pytest failed, but no verdict says why: see its output above"
_NOTHING_ON_GPU = "nothing was shown on a GPU: every case was NOT_APPLICABLE"
_EXIT_STATUS = {
    2: "was interrupted",
    3: "had an internal error",
    4: "refused its arguments",
    5: "found no test",
}


def apply_expectations(run: RunResult, batch: Batch, options: RunOptions) -> RunResult:
    """Add to each result the command that repeats it, and mark results that contradict the case's
    role in this environment.

    Done once, where the run was started, whatever machine ran the batch.
    """
    return replace(
        run,
        results=tuple(_judge_result(result, run.results, batch, options) for result in run.results),
    )


def _judge_result(
    result: TestResult, results: tuple[TestResult, ...], batch: Batch, options: RunOptions
) -> TestResult:
    result = codec.replace(
        result, command=options.repeat_command(result.case_id, result.environment)
    )
    role = batch.roles.get(result.case_id)
    if role is None:
        return result
    expected = EXPECTED_VERDICTS[role]
    # The verdict of the case counts: a variant that is not affected does not contradict the
    # evidence.
    case_verdict = verdict_of([other for other in results if other.case_id == result.case_id])
    if case_verdict is expected or not result.expected or result.verdict is not case_verdict:
        return result
    because = f"{batch.environment} is evidence that the case is {expected.value}, and it was {case_verdict.value}"
    return codec.replace(result, not_expected_because=because)


def inconclusive_results(batch: Batch, cases: Sequence[Case], why: str) -> tuple[TestResult, ...]:
    """Return an INCONCLUSIVE result for each of these cases of the batch."""
    return tuple(
        TestResult(
            case_id=case.id,
            test=f"{case.directory.name} (no test)",
            verdict=Verdict.INCONCLUSIVE,
            reason=why,
            device="unknown",
            environment=batch.environment,
            started_at=wall_time(),
        )
        for case in cases
    )


def not_built(batch: Batch, error: BuildError) -> RunResult:
    """Return the results of a batch whose environment could not be built.

    The reason is a problem of the run, shown once.
    """
    why = "the environment could not be built: see the problem below"
    return RunResult(
        inconclusive_results(batch, batch.cases, why), (f"{batch.environment}: {error}",)
    )


def not_finished(batch: Batch, reported: RunResult, error: Exception) -> RunResult:
    """Return the results of a batch that a full disk ended, with those that it had ``reported``."""
    missing = batch.without({result.case_id for result in reported.results}).cases
    why = "the run of this case could not be written: see the problem below"
    return RunResult(
        reported.results + inconclusive_results(batch, missing, why),
        (*reported.problems, f"{batch.environment}: {error}"),
    )


def interruption_note(batch: Batch) -> RunResult:
    """Return the problem that cases of an interrupted batch have no verdict."""
    return RunResult(
        (),
        (f"{batch.environment}: interrupted; only cases whose tests had all ended have a verdict",),
    )


def with_missing_cases(
    batch: Batch, reported: RunResult, status: int, unreadable: str = "", output: str = ""
) -> RunResult:
    """Return what pytest reported of the batch's own cases, with an INCONCLUSIVE result for each
    case that is missing. A pytest that is broken off reports only cases whose tests had all ended.

    ``unreadable``: why the report is missing or cannot be read. ``output``: the end of pytest's
    output, if it is not above.
    """
    case_ids = {case.id for case in batch.cases}
    results = tuple(result for result in reported.results if result.case_id in case_ids)
    missing = batch.without({result.case_id for result in results}).cases
    problems, why = reported.problems, f"pytest {describe_status(status)}"
    if status in (0, 1):
        unreadable = unreadable or " and reported nothing for this case"
    excerpt = f". Its output ends with: {output}" if output else ": see its output above"
    if status == 1 and not missing and all(result.expected for result in results):
        on_gpu = all(
            result.device == "gpu" and result.verdict is Verdict.NOT_APPLICABLE
            for result in results
        )
        problems += (f"{batch.environment}: {_NOTHING_ON_GPU if on_gpu else _UNEXPLAINED}",)
    elif status not in (0, 1) and not missing:
        problems += (f"{batch.environment}: {why}, after all results{excerpt}",)
    return RunResult(
        results + inconclusive_results(batch, missing, why + unreadable + excerpt), problems
    )


def describe_status(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
    return _EXIT_STATUS.get(status, f"ended with status {status}")
