"""Try each case against failures that are not its own: run one of its tests once per impostor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..cases.loading import load_valid_cases
from ..cases.model import Case
from ..cases.observation import Observation
from ..cases.proofs.impostors import Impostor, ImpostorRun, unrelated_log, write_impostor_runs
from ..cases.verdict import judge_observation
from ..errors import Kind
from .fault_injection import FaultInjection
from .leg import Leg, sanitize
from .markers import MarkedCase, test_id
from .session import session_of
from .verdicts import observe, target_of


class ImpostorRuns:
    """The runs of one pytest run, written to a file in the folder that the hidden option
    ``--vllm-impostors`` names."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.getpid()}.json"
        self._runs: list[ImpostorRun] = []
        self._floods: dict[Path, str] = {}

    def run(
        self, item: pytest.Item, marked: MarkedCase, run_leg: Callable[[Leg], Leg]
    ) -> list[str]:
        """Try all impostors on a test, unless another test of its case was tried already.

        Return the faults of the case.
        """
        target = target_of(item)
        tried = {(run.case, run.environment) for run in self._runs}
        if target is None or (marked.case.id, target.name) in tried:
            return []
        runs: list[ImpostorRun] = []
        for fault in self._injections(item, marked.case):
            observation = observe(run_leg(Leg(fault=fault)))
            if not fault.injected:
                continue
            decision = judge_observation(
                marked.case,
                marked.variant,
                target.versions,
                observation,
                Observation(Kind.PASSED, observation.phase),
            )
            progress = session_of(item.config).progress
            about = f"{marked.case.id} on {target.name}, {fault.impostor}"
            if fault.ignored and decision.verdict.shown:
                ignoring = ", ".join(dict.fromkeys(fault.ignored))
                progress(f"{about}: left out, because {ignoring} ignores unknown arguments")
                continue
            run = ImpostorRun(
                marked.case.id,
                target.name,
                test_id(item),
                fault.impostor,
                decision.verdict,
                decision.reason,
                tuple(fault.replaced),
            )
            progress(f"{about}: {run.verdict.value}")
            runs.append(run)
        self._runs += runs
        write_impostor_runs(self._file, self._runs)
        return [run.flaw for run in runs if run.flaw]

    def _injections(self, item: pytest.Item, case: Case) -> Iterator[FaultInjection]:
        if case.path not in self._floods:
            self._floods[case.path] = unrelated_log(
                case, load_valid_cases(case.directory.parent).cases
            )
        without_server = "vllm_server" not in getattr(item, "fixturenames", ())
        for impostor in Impostor:
            if impostor is not Impostor.ERROR_STATUS or not without_server:
                yield FaultInjection(impostor, case, self._floods[case.path])


IMPOSTOR_RUNS: pytest.StashKey[ImpostorRuns] = pytest.StashKey()


def impostor_runs_of(config: pytest.Config) -> ImpostorRuns | None:
    """Return the runs of this run; None without ``--vllm-impostors``."""
    folder = config.getoption("vllm_impostors")
    return config.stash.setdefault(IMPOSTOR_RUNS, ImpostorRuns(Path(folder))) if folder else None


def report_of(item: pytest.Item, faults: list[str]) -> pytest.TestReport:
    """Return the report on the runs of one test."""
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={},
        outcome="failed" if faults else "passed",
        longrepr=sanitize("\n".join(faults)) or None,
        when="call",
    )
