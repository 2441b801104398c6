"""A campaign in steps: rounds of drawn questions, a budget, and a journal by which a killed
campaign goes on.

A step has its questions from the seed and the number of its round, and knows the findings of
earlier steps alone. So the same seed gives the same findings, as far as the budget reaches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ..errors import UsageError
from ..util.documents import load_json
from ..util.files import write_atomically

JOURNAL = "campaign.json"
_MAX_JOURNAL = 32 << 20


class Stored(Protocol):
    """A finding that is a file in the folder of its campaign."""

    @property
    def name(self) -> str:
        """Name of the file."""
        ...

    def save(self, folder: Path) -> Path: ...

    def to_json(self) -> dict[str, Any]: ...


F = TypeVar("F", bound=Stored)
StepRun = Callable[[], tuple[dict[str, Any], list[F]]]
"""Function that runs a step and returns its journal entry and its new findings."""


@dataclasses.dataclass(frozen=True)
class Step(Generic[F]):
    """A step, named by its round (from 0) and its label."""

    round: int
    label: str
    run: StepRun[F]


class SteppedCampaign(Generic[F]):
    """Runs steps, and keeps a journal and the findings in ``folder``. A subclass yields the steps.

    Args:
        key: what the campaign asks. The journal of a campaign with another key is not resumed.
        load: reads a finding.
        minutes: budget, over all resumptions; None for no limit.
    """

    def __init__(
        self,
        key: Mapping[str, Any],
        folder: Path,
        load: Callable[[Path], F],
        minutes: float | None,
        write_line: Callable[[str], None],
    ) -> None:
        self.key, self.folder, self.minutes = dict(key), folder, minutes
        self.findings: list[F] = []
        self.steps: list[dict[str, Any]] = []
        self._write_line = write_line
        self._clock = time.monotonic
        self._spent = 0.0
        self._resume(load)

    @property
    def seconds(self) -> float:
        """Time that the steps took."""
        return float(sum(step["seconds"] for step in self.steps))

    def all_steps(self) -> Iterator[Step[F]]:
        """Yield the steps of all rounds, without end if the number of rounds is not limited."""
        raise NotImplementedError

    def report(self, step: Mapping[str, Any], findings: list[F]) -> None:
        """Write lines about a step that has ended and its new findings."""
        raise NotImplementedError

    def run(self) -> None:
        """Run the steps that are not done yet, until the budget is spent."""
        done = {(step["round"], step["label"]) for step in self.steps}
        began = self._clock() - self._spent
        for step in self.all_steps():
            if (step.round, step.label) in done:
                continue
            self._spent = self._clock() - began
            if self.minutes is not None and self._spent >= self.minutes * 60:
                return
            entry, findings = self._run_step(step)
            self._spent = self._clock() - began
            self._write_journal()
            self.report(entry, findings)  # afterwards: what was reported is not run again

    def _run_step(self, step: Step[F]) -> tuple[dict[str, Any], list[F]]:
        began = self._clock()
        facts, findings = step.run()
        self.findings += findings
        entry = {
            "round": step.round,
            "label": step.label,
            **facts,
            "seconds": round(self._clock() - began, 3),
            "findings": [finding.name for finding in findings],
        }
        self.steps.append(entry)
        for finding in findings:
            finding.save(self.folder)
        return entry, findings

    def _resume(self, load: Callable[[Path], F]) -> None:
        """Take over the journal in the folder, if it has the same key.

        A larger budget is the same campaign.
        """
        path = self.folder / JOURNAL
        if not path.exists():
            return
        journal = load_json(path, _MAX_JOURNAL, what="the journal of a campaign")
        if not isinstance(journal, dict) or journal.get("plan") != self.key:
            raise UsageError(
                f"{path}: the journal of another campaign ({', '.join(self.key)} differ). Choose another folder with --out"
            )
        self.steps, self._spent = journal["steps"], journal["spent"]
        for name in (name for step in self.steps for name in step["findings"]):
            with contextlib.suppress(UsageError):  # removed by the user
                self.findings.append(load(self.folder / name))
        self._write_line(f"  {len(self.steps)} steps of {path} are done already")

    def _write_journal(self) -> None:
        journal = {"plan": self.key, "spent": round(self._spent, 3), "steps": self.steps}
        write_atomically(self.folder / JOURNAL, json.dumps(journal, indent=1) + "\n")
