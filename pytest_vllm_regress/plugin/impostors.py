"""Try each case against failures that are not its own: run one of its tests once per impostor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..cases.loading import CASE_FILE, load_case
from ..cases.model import Case
from ..cases.observation import Observation
from ..cases.proofs import impostors
from ..cases.proofs.impostors import Impostor, ImpostorTrial
from ..cases.verdict import judge_observation
from ..errors import CaseFileError, Kind
from .evidence import Evidence, sanitize
from .fault_injection import FaultInjection
from .markers import MarkedCase, test_id
from .session import session_of
from .verdicts import observe, target_of


class Trials:
    """The trials of one pytest run, written to a file in the folder that the hidden option
    ``--vllm-impostors`` names."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.getpid()}.json"
        self._trials: list[ImpostorTrial] = []
        self._floods: dict[Path, str] = {}

    def run(
        self, item: pytest.Item, marked: MarkedCase, run_leg: Callable[[Evidence], Evidence]
    ) -> list[str]:
        """Try all impostors on a test, unless another test of its case was tried already.

        Return the faults of the case.
        """
        target = target_of(item)
        tried = {(trial.case, trial.environment) for trial in self._trials}
        if target is None or (marked.case.id, target.name) in tried:
            return []
        trials = []
        for fault in self._injections(item, marked.case):
            observation = observe(run_leg(Evidence(fault=fault)))
            if not fault.injected:
                continue
            decision = judge_observation(
                marked.case,
                marked.variant,
                target.versions,
                observation,
                Observation(Kind.PASSED, observation.phase),
            )
            trial = ImpostorTrial(
                marked.case.id,
                target.name,
                test_id(item),
                fault.impostor,
                decision.verdict,
                decision.reason,
            )
            session_of(item.config).progress(
                f"{trial.case} on {trial.environment}, {trial.impostor}: {trial.verdict.value}"
            )
            trials.append(trial)
        self._trials += trials
        impostors.write_trials(self._file, self._trials)
        return [trial.fault for trial in trials if trial.fault]

    def _injections(self, item: pytest.Item, case: Case) -> Iterator[FaultInjection]:
        if case.path not in self._floods:
            self._floods[case.path] = impostors.unrelated_log(case, _beside(case))
        for impostor in Impostor:
            if impostor is Impostor.ERROR_STATUS and "vllm_server" not in getattr(
                item, "fixturenames", ()
            ):
                continue
            yield FaultInjection(impostor, case, self._floods[case.path])


def _beside(case: Case) -> list[Case]:
    """Return the readable cases in the folders next to this one."""
    cases = []
    for path in sorted(case.directory.parent.glob(f"*/{CASE_FILE}")):
        with contextlib.suppress(CaseFileError):
            cases.append(load_case(path))
    return cases


TRIALS: pytest.StashKey[Trials] = pytest.StashKey()


def trials_of(config: pytest.Config) -> Trials | None:
    """Return the trials of this run; None without ``--vllm-impostors``."""
    folder = config.getoption("vllm_impostors")
    return config.stash.setdefault(TRIALS, Trials(Path(folder))) if folder else None


def report_of(item: pytest.Item, faults: list[str]) -> pytest.TestReport:
    """Return the report on the trials of one test."""
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={},
        outcome="failed" if faults else "passed",
        longrepr=sanitize("\n".join(faults)) or None,
        when="call",
    )
