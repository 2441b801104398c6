"""Each case against failures that are not its own: one test of it, once for every impostor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..cases import impostors
from ..cases.impostors import Impostor, Trial
from ..cases.judgement import judge
from ..cases.model import CASE_FILE, Case, load_case
from ..cases.observation import Observation
from ..errors import CaseFileError, Kind
from .evidence import Evidence, harmless
from .judge import observe, target_of
from .markers import MarkedCase, test_id
from .session import session_of
from .strike import Strike


class Trials:
    """The trials of one pytest run, written to a file in the folder that the hidden option ``--vllm-impostors`` names."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.getpid()}.json"
        self._found: list[Trial] = []
        self._floods: dict[Path, str] = {}

    def run(self, item: pytest.Item, marked: MarkedCase, run_leg: Callable[[Evidence], Evidence]) -> list[str]:
        """Try all impostors on a test, unless another test of its case has met them already; returns what is wrong."""
        target = target_of(item)
        known = {(each.case, each.environment) for each in self._found}
        if target is None or (marked.case.id, target.name) in known:
            return []
        found = []
        for strike in self._strikes(item, marked.case):
            seen = observe(run_leg(Evidence(strike=strike)))
            if not strike.struck:
                continue
            decision = judge(marked.case, marked.variant, target.versions, seen, Observation(Kind.PASSED, seen.phase))
            trial = Trial(
                marked.case.id, target.name, test_id(item), strike.impostor, decision.verdict, decision.reason
            )
            session_of(item.config).progress(
                f"{trial.case} on {trial.environment}, {trial.impostor}: {trial.verdict.value}"
            )
            found.append(trial)
        self._found += found
        impostors.write(self._file, self._found)
        return [each.fault for each in found if each.fault]

    def _strikes(self, item: pytest.Item, case: Case) -> Iterator[Strike]:
        if case.path not in self._floods:
            self._floods[case.path] = impostors.flood(case, _beside(case))
        for impostor in Impostor:
            if impostor is Impostor.ERROR_STATUS and "vllm_server" not in getattr(item, "fixturenames", ()):
                continue
            yield Strike(impostor, case, self._floods[case.path])


def _beside(case: Case) -> list[Case]:
    """The cases beside this one, as far as they can be read."""
    found = []
    for path in sorted(case.directory.parent.glob(f"*/{CASE_FILE}")):
        with contextlib.suppress(CaseFileError):
            found.append(load_case(path))
    return found


TRIALS: pytest.StashKey[Trials] = pytest.StashKey()


def trials_of(config: pytest.Config) -> Trials | None:
    """The trials of this run; None where none are asked for (``--vllm-impostors``)."""
    folder = config.getoption("vllm_impostors")
    return config.stash.setdefault(TRIALS, Trials(Path(folder))) if folder else None


def report_of(item: pytest.Item, faults: list[str]) -> pytest.TestReport:
    """What pytest shows of the trials on one test."""
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={},
        outcome="failed" if faults else "passed",
        longrepr=harmless("\n".join(faults)) or None,
        when="call",
    )
