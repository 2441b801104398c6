"""Measure how many small faults planted in a release of vLLM are found, and by what.

    python benchmarks/planted.py --source CLONE [FAULT ...] [--finder NAME] [--again] [--limit SECONDS]
    python benchmarks/planted.py --source CLONE --confirm [--finder NAME]
    python benchmarks/planted.py --table

planted.toml has the faults. Each is planted alone in a copy of the environment. The finders:

cases      the cases that `vllm-regress try` would run first are run there, as `try` runs them, until
           a test has an unexpected verdict or an engine keeps what it should not (an invariant).
           Cases of which it is recorded that they execute none of the changed functions are not run:
           they cannot notice it. The verdicts without the fault are those of the table.
exercise   the exercise of `vllm-regress try`: those stations that execute a changed function without
           the fault, until an answer differs that is the same in every run without the fault.
upstream   vLLM's own tests of the changed module, which `vllm-regress try --upstream` would run, as
           far as they pass without the fault and execute a changed function, until one fails.

Each result is added to docs/records/planted.jsonl at once, and faults that have one are skipped, so
that the same command goes on where an earlier one ended. `--confirm` runs the cases or stations that
found a fault once more, without any; upstream's tests are run again at once.

This module is also the plugin of pytest that stops at the first finding.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks import planted_tests
from pytest_vllm_regress.answers.audit.verdict_table import read_table
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.results import (
    RunResult,
    TestResult,
    append_results,
    read_appended_results,
)
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import KEPT_REQUESTS
from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.engines.target import built_target, inspect
from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.environments.git import Repository
from pytest_vllm_regress.environments.install import BYTECODE, link_packages
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.exercise.comparison import (
    Exercise,
    StationAnswers,
    workload_id,
)
from pytest_vllm_regress.fuzz.exercise.differences import Answers, Difference, differences
from pytest_vllm_regress.fuzz.exercise.parsers import PARSERS
from pytest_vllm_regress.fuzz.exercise.workload import stations
from pytest_vllm_regress.history.case_coverage import CaseCoverage
from pytest_vllm_regress.history.changed_functions import ChangedFunctions, changed_functions
from pytest_vllm_regress.history.patch import nearness
from pytest_vllm_regress.plugin.reporter import ATTRIBUTE
from pytest_vllm_regress.runner.batch import Batch, RunOptions
from pytest_vllm_regress.runner.plan import recorded_seconds
from pytest_vllm_regress.runner.pytest_run import (
    INTERRUPT_GRACE_S,
    ReportReader,
    end_command,
    run_batch,
    start_command,
)
from pytest_vllm_regress.surveys.upstream.both_sides import files_about
from pytest_vllm_regress.surveys.upstream.tests import RunLimits, UpstreamRequest, run_tests
from pytest_vllm_regress.surveys.upstream.tree import TestTree, write_tree
from pytest_vllm_regress.util import codec
from pytest_vllm_regress.util.exclusive import Exclusive
from pytest_vllm_regress.util.paths import writable_root
from pytest_vllm_regress.util.rundir import scratch
from pytest_vllm_regress.util.store import Store

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "benchmarks" / "planted.toml"
RECORD = ROOT / "docs" / "records" / "planted.jsonl"
ENVIRONMENT = "vllm-0.33.0"
LIMITS_S = {"cases": 150.0, "exercise": 150.0, "upstream": 45.0}
"""Seconds for one fault, on an idle machine, by finder."""
_TEST_LIMITS = RunLimits(test_s=120.0, collect_s=1200.0)
_STARTS_ENGINES = re.compile(
    r"RemoteOpenAIServer|vllm_runner|\b(?:LLM|EngineCore|EngineCoreProc)\(|(?:AsyncLLM|LLMEngine)\.from"
)
_REPORT = "PLANTED_REPORT"
"""Variable: where the plugin writes the result of each test when it ends."""
_MAX_REASON = 300
_SAME = "the same"
_AS_EXPECTED = (Verdict.FIXED.value, "passed", _SAME)
"""What a run without the fault says, by finder."""
_FOUND = (Verdict.REPRODUCED, Verdict.INCONCLUSIVE)
"""Verdicts that count as a finding, because the case is FIXED without the fault."""


@dataclass(frozen=True)
class Fault:
    """A change of one file: ``find``, which is there once, becomes ``replace``.

    ``path`` is relative to site-packages. ``needs``: what a test must do to see it.
    """

    id: str
    area: str
    path: str
    find: str
    replace: str
    what: str
    kind: str
    needs: str

    def planted_in(self, content: str) -> str:
        """Return the file with the fault. Raises ``UsageError`` if it does not fit."""
        if (count := content.count(self.find)) != 1:
            raise UsageError(f"{self.id}: its text is {count} times in {self.path}: expected 1")
        return content.replace(self.find, self.replace)


@dataclass(frozen=True)
class Outcome:
    """The result of one finder for one fault.

    ``found_by``: ``case``, ``invariant``, ``exercise``, ``upstream`` or ``none``. ``containers``:
    those with which an invariant was broken. ``seconds``: until the first answer, else until the
    end. ``ran``: the cases, or upstream's files, of which a test was run, or the stations.
    ``executing``: number of cases, tests or stations that execute a changed function. ``case``: of
    the exercise, the station. ``out_of_time``: the limit ended the run. ``load``: of the machine
    before. ``invariants``: which state of them, or of the exercise. ``without``: verdict of the same
    case or test without the fault, if it was run again.
    """

    found_by: str
    seconds: float
    ran: tuple[str, ...]
    executing: int
    case: str = ""
    test: str = ""
    reason: str = ""
    containers: tuple[str, ...] = ()
    out_of_time: bool = False
    load: float = 0.0
    invariants: str = ""
    without: str = ""

    @property
    def found(self) -> bool:
        """Whether the fault was found by a check that passes without it."""
        return self.found_by != "none" and self.without in ("", *_AS_EXPECTED)

    @property
    def missed(self) -> bool:
        """Whether tests that execute a changed function were run and did not find the fault."""
        return not self.found and self.executing > 0


def read_faults(path: Path = FAULTS) -> dict[str, Fault]:
    """Return the faults by id: one of each area in turn, so that the first ones are a fair sample."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    faults = [codec.decode(Fault, entry, str(path)) for entry in entries]
    by_area: dict[str, list[Fault]] = {}
    for fault in faults:
        by_area.setdefault(fault.area, []).append(fault)
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*by_area.values()))
    return {fault.id: fault for fault in in_turn if fault is not None}


class Copy:
    """A hard-linked copy of an environment, in which one file at a time is replaced.

    ``base``: the interpreter of the environment, which stays as it is.
    """

    def __init__(self, base: Path, place: Path) -> None:
        self.python = place / "bin" / "python"
        self._base, self._place = base.parent.parent, place
        self._lock = Exclusive(place, "the copy of an environment")
        (site,) = self._base.glob("lib/python3.*/site-packages")
        self._base_site, self._site = site, place / site.relative_to(self._base)

    def make(self) -> None:
        """Make the copy, with the bytecode, unless it is there. Raises ``UsageError`` if another run
        has it, which would plant its faults in the same files."""
        self._lock.acquire()
        if (self._place / "vllm-regress.json").exists():
            return
        shutil.rmtree(self._place, ignore_errors=True)
        uv.run(
            ["venv", "--quiet", "--python", str(self._base / "bin" / "python"), self._place],
            doing="making a copy",
        )
        link_packages(self._base, self._place)
        bytecode = self._place / BYTECODE / self._place.relative_to("/")
        shutil.copytree(
            self._base / BYTECODE / self._base.relative_to("/"), bytecode, copy_function=os.link
        )
        (self._place / "vllm-regress.json").write_text("{}\n")

    def places(self, path: str) -> dict[str, str]:
        """Return where a file of the copy is, and that of the environment."""
        return {"path": str(self._site / path), "base": str(self._base_site / path)}

    def content(self, path: str) -> str:
        """Return a file of the environment as it is without a fault."""
        return (self._base_site / path).read_text(encoding="utf-8")

    def restore(self, paths: Iterable[str]) -> None:
        """Undo what a killed run has planted."""
        for path in paths:
            if not (self._site / path).exists() or not (self._site / path).samefile(
                self._base_site / path
            ):
                self._replace(path, None)

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Plant the fault in the copy for the duration of the block."""
        content = fault.planted_in(self.content(fault.path))
        try:
            self._replace(fault.path, content)
            yield
        finally:
            self._replace(fault.path, None)

    def _replace(self, path: str, content: str | None) -> None:
        """Give a file another content, and with None that of the environment. The link is removed
        first, so that the environment's own file is not written."""
        (self._site / path).unlink(missing_ok=True)
        if content is None:
            os.link(self._base_site / path, self._site / path)
        else:
            (self._site / path).write_text(content, encoding="utf-8")


class Candidates:
    """The cases that are FIXED in the environment, in the order in which ``try`` runs them."""

    def __init__(self, cases: Sequence[Case], clone: Repository) -> None:
        table = read_table(cases)
        fixed = {
            case.id
            for case in cases
            for entry in table.of_case(case.id)
            if (entry.environment, entry.device) == (ENVIRONMENT, "sim") and entry.shown is False
        }
        shortest_first = sorted(cases, key=lambda case: recorded_seconds(case, ENVIRONMENT))
        self._cases = [case for case in shortest_first if case.id in fixed]
        self._coverage, self._clone = CaseCoverage.load(), clone

    def for_functions(self, path: str, functions: ChangedFunctions) -> tuple[Case, ...]:
        """Return the cases that execute, or may execute, one of the functions, the closest first."""
        names = set(functions.names)
        executing = [
            case
            for case in self._cases
            if functions.outside
            or case.id not in self._coverage.by_case
            or names & self._coverage.executed_by(case.id)
        ]
        near = nearness(executing, frozenset([path]), functions, self._clone)
        return tuple(sorted(executing, key=lambda case: near[case.id], reverse=True))


def functions_of(fault: Fault, content: str) -> ChangedFunctions:
    """Return the functions that the fault changes in the file."""
    before, after = content.encode(), fault.planted_in(content).encode()
    return changed_functions([fault.path], {fault.path: before}, {fault.path: after})


def run_cases(
    python: Path, cases: Sequence[Case], limit_s: float
) -> tuple[tuple[TestResult, ...], float, bool]:
    """Run the cases in one pytest until the first finding. Return the results of the tests that have
    ended, when it began, and whether the limit ended it."""
    expired = False

    def start(command: Sequence[str], environment: Any) -> int:
        nonlocal expired
        with (folder / "pytest.log").open("wb") as log:
            process = start_command(command, {**environment, _REPORT: str(report)}, output=log)
            try:
                return process.wait(limit_s)
            except subprocess.TimeoutExpired:
                expired = True
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(INTERRUPT_GRACE_S)
                return 2
            finally:
                end_command(process)

    with scratch() as folder:
        report, begun = folder / "tests.jsonl", time.time()
        arguments = (f"--vllm-leftovers={KEPT_REQUESTS}", "-p", "benchmarks.planted")
        options = RunOptions(device="sim", pytest_args=arguments)
        batch = Batch(str(python), tuple(cases), {})
        run = run_batch(
            batch, options, start, ReportReader(folder / "cases.jsonl"), folder / "pytest.log"
        )
        results = read_appended_results(report, 0)[0].results
        if not results and not expired:
            results = run.results[:1]  # pytest itself could not run: says why
        return results, begun, expired


def is_finding(result: TestResult) -> bool:
    """Return whether a result shows the fault, that is, whether its case is FIXED without the fault."""
    return result.verdict in _FOUND or bool(result.held)


def pytest_sessionstart(session: pytest.Session) -> None:
    if path := os.environ.get(_REPORT):
        session.config.pluginmanager.register(_Recorder(session, Path(path)))


class _Recorder:
    """Writes the result of each test when it ends, and ends pytest after a finding, as -x does."""

    def __init__(self, session: pytest.Session, report: Path) -> None:
        self._session, self._report = session, report
        self._finding = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        result = getattr(report, ATTRIBUTE, None)
        if result is not None:
            append_results(self._report, RunResult((result,)))
            if is_finding(result):
                self._finding = self._finding or result.test

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        if self._finding:
            self._session.shouldstop = f"{self._finding} has found it"


def outcome_of(
    results: Sequence[TestResult], begun: float, executing: int, out_of_time: bool
) -> Outcome:
    """Return what these results, of tests in the order in which they ended, say about a fault."""
    ran = tuple(dict.fromkeys(result.case_id for result in results))
    found = next(filter(is_finding, results), None)
    if found is None:
        seconds = max((result.ended_at for result in results), default=begun) - begun
        return Outcome("none", round(seconds, 1), ran, executing, out_of_time=out_of_time)
    return Outcome(
        "invariant" if found.held else "case",
        round(found.ended_at - begun, 1),
        ran,
        executing,
        found.case_id,
        found.test.rpartition("/")[2],
        " ".join(found.reason.split())[:_MAX_REASON],
        found.held,
    )


@dataclass(frozen=True)
class Bench:
    """Where faults are planted: the copy, the cases for each, the seconds, and the name of the state
    of the invariants."""

    copy: Copy
    candidates: Candidates
    limit_s: float
    invariants: str

    def outcome(self, fault: Fault) -> Outcome | None:
        """Plant a fault and run the cases; None if no test has ended in time."""
        functions = functions_of(fault, self.copy.content(fault.path))
        cases = self.candidates.for_functions(fault.path, functions)
        load, outcome = os.getloadavg()[0], Outcome("none", 0.0, (), 0)
        if cases:
            with self.copy.planted(fault):
                results, begun, expired = run_cases(self.copy.python, cases, self.limit_s)
            if not results:
                return None
            outcome = outcome_of(results, begun, len(cases), expired)
        return replace(outcome, load=round(load, 1), invariants=self.invariants)


def all_functions(faults: Iterable[Fault], copy: Copy) -> ChangedFunctions:
    """Return the functions that the faults change."""
    by_module: dict[str, tuple[str, ...]] = {}
    for fault in faults:
        changed = functions_of(fault, copy.content(fault.path))
        for module, names in changed.by_module.items():
            by_module[module] = tuple(dict.fromkeys((*by_module.get(module, ()), *names)))
    return ChangedFunctions(by_module, ())


@dataclass(frozen=True)
class KnownStation:
    """A station of the exercise without a fault, and the functions that it executes."""

    answers: StationAnswers
    executed: tuple[str, ...]


class ExerciseBench:
    """The exercise in the copy. ``known``: the stations without a fault."""

    def __init__(self, copy: Copy, known: Store[KnownStation], limit_s: float) -> None:
        self._copy, self._known, self._limit_s = copy, known, limit_s
        self._python = str(copy.python)

    def learn(self, functions: ChangedFunctions) -> None:
        """Run the stations that are not known yet, twice. ``functions``: of all faults."""
        listed = [*(station.name for station in stations()), PARSERS]
        names = [name for name in listed if name not in self._known]
        with scratch() as folder, functions.recorded(folder / "executed"):
            executed = planted_tests.Executed()
            for name, answers in self._run(names):
                known = KnownStation(StationAnswers(answers), tuple(executed.taken()))
                self._known.add(name, known)
                print(
                    f"{name}: {len(answers)} answers, {len(known.executed)} functions", flush=True
                )
        once = [name for name, known in self._known.entries.items() if known.answers.runs == 1]
        for name, answers in self._run(once):
            self._note(name, answers)

    def _note(self, name: str, answers: Answers) -> None:
        """Keep the answers of a station without a fault that all of its runs share."""
        known = self._known[name]
        self._known.add(name, replace(known, answers=known.answers.with_run(answers)))

    def outcome(self, fault: Fault) -> Outcome:
        """Plant a fault and run the stations that can notice it until an answer differs twice."""
        wanted = set(functions_of(fault, self._copy.content(fault.path)).names)
        names = [name for name, known in self._known.entries.items() if wanted & {*known.executed}]
        load, begun = round(os.getloadavg()[0], 1), time.time()
        outcome = Outcome("none", 0.0, (), len(names), load=load, invariants=workload_id()[:10])
        if not names:
            return outcome
        ran: list[str] = []
        sure: list[Difference] = []
        with self._copy.planted(fault), _session() as session:
            for name, answers in Exercise(session, self._python, names).run():
                ran.append(name)
                seconds = round(time.time() - begun, 1)
                known = self._known[name].answers.answers
                if found := {one.name for one in differences(known, answers)}:
                    again = dict(Exercise(session, self._python, [name]).run())[name]
                    sure = [one for one in differences(known, again) if one.name in found]
                if sure or seconds > self._limit_s:
                    break
        late = not sure and len(ran) < len(names)
        outcome = replace(outcome, seconds=seconds, ran=tuple(ran), out_of_time=late)
        if not sure:
            return outcome
        shown = f"{sure[0].where}: before {sure[0].before}, after {sure[0].after}"
        return replace(
            outcome,
            found_by="exercise",
            case=ran[-1],
            test=sure[0].name,
            reason=shown[:_MAX_REASON],
        )

    def confirm(self, store: Store[Outcome]) -> None:
        """Run the stations that found a fault once more, without any."""
        found = {name: o for name, o in store.entries.items() if o.found_by == "exercise"}
        stations_again = dict.fromkeys(o.case for o in found.values() if not o.without)
        for station, answers in self._run(list(stations_again)):
            self._note(station, answers)
            known = self._known[station].answers.answers
            for name, outcome in found.items():
                if outcome.case == station:
                    stable = known.get(outcome.test, {}) is not None
                    outcome = replace(outcome, without=_SAME if stable else "another answer")
                    store.add(name, outcome)
                    print(f"{outcome.test} without a fault: {outcome.without}", flush=True)

    def _run(self, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Run stations without a fault."""
        if names:
            with _session() as session:
                yield from Exercise(session, self._python, names).run()


def _session() -> AbstractContextManager[Session]:
    """Return a session whose processes import vLLM anew."""
    return bare_session(device="sim", leftovers=KEPT_REQUESTS)


class UpstreamTests:
    """vLLM's own tests of a release, in the copy of its environment.

    ``clone``: for the order of the files. ``sound``: file with the results without a fault, of test
    files that were run before. ``engines``: also files whose tests start engines and servers.
    """

    def __init__(
        self, copy: Copy, clone: Repository, tree: TestTree, sound: Path, engines: bool
    ) -> None:
        self._copy, self._tree = copy, tree
        self._history = clone.commits_touching({fault.path for fault in read_faults().values()})
        self._sound, self._engines = sound, engines
        self._files: dict[str, tuple[str, ...]] = {}

    def files_of(self, path: str) -> tuple[str, ...]:
        """Return the test files that ``try --upstream`` runs for a change to this module."""
        if path not in self._files:
            history = (commit for commit in self._history if path in commit.touched)
            files = files_about(frozenset([path]), self._tree, history)
            self._files[path] = tuple(
                file
                for file in files
                if self._engines or not _STARTS_ENGINES.search((self._tree.root / file).read_text())
            )
        return self._files[path]

    def run(self, faults: Sequence[Fault], found: Path, limit_s: float) -> None:
        """Run the files of all faults without a fault, then with each. ``found`` gets the results;
        ``limit_s``: of the processor, for each fault."""
        contents = {fault.id: self._copy.content(fault.path) for fault in faults}
        files = tuple(dict.fromkeys(file for fault in faults for file in self.files_of(fault.path)))
        plan = {
            "sound": str(self._sound),
            "found": str(found),
            "limit_s": limit_s,
            "faults": [
                {
                    "id": fault.id,
                    **self._copy.places(fault.path),
                    "faulty": fault.planted_in(contents[fault.id]),
                    "functions": functions_of(fault, contents[fault.id]).names,
                    "files": self.files_of(fault.path),
                }
                for fault in faults
            ],
        }
        (self._tree.root / planted_tests.PLAN).write_text(json.dumps(plan))
        shutil.copy(planted_tests.__file__, self._tree.root)
        functions = all_functions(faults, self._copy)
        with scratch() as folder, functions.recorded(folder / "executed"):
            request = UpstreamRequest(
                self._tree,
                files,
                inspect(str(self._copy.python), self._copy.python, "sim"),
                folder / "dossiers",
                limits=_TEST_LIMITS,
                pytest_args=("-p", planted_tests.__name__.rpartition(".")[2]),
            )
            run_tests(request, writable_root() / "planted" / "tests.log")

    def keep(self, faults: Sequence[Fault], found: Path, store: Store[Outcome]) -> None:
        """Record the outcome of each fault that ``run`` has completed."""
        lines = list(map(json.loads, found.read_text().splitlines())) if found.exists() else []
        for fault in faults:
            of_fault = [line for line in lines if line["fault"] == fault.id]
            if of_fault and of_fault[-1]["outcome"] == "end":
                outcome = outcome_of_tests(of_fault)
                store.add(entry_name(fault.id, "upstream"), outcome)
                print(f"{fault.id}: {describe(outcome)}", flush=True)
        found.unlink(missing_ok=True)


def outcome_of_tests(lines: Sequence[Mapping[str, Any]]) -> Outcome:
    """Return the outcome of upstream's tests for a fault."""
    end = lines[-1]
    ended = [line for line in lines if line["outcome"] in ("passed", "failed", "skipped")]
    files = tuple(dict.fromkeys(line["test"].partition("::")[0] for line in ended))
    seconds = ended[-1]["seconds"] if ended else 0.0
    outcome = Outcome("none", seconds, files, end["tests"], load=end["load"])
    failed = next((line for line in ended if line["outcome"] == "failed"), None)
    without = next((line["without"] for line in lines if line["outcome"] == "without"), "")
    if failed is None or without == "failed":
        return replace(outcome, out_of_time=end["end"] == planted_tests.LATE, without=without)
    return replace(
        outcome,
        found_by="upstream",
        test=failed["test"],
        reason=failed["reason"],
        without=without,
    )


def entry_name(fault_id: str, finder: str) -> str:
    """Return the name of an entry of the record."""
    return f"{fault_id} {finder}"


def measure(
    faults: Iterable[Fault],
    store: Store[Outcome],
    finder: str,
    ask: Callable[[Fault], Outcome | None],
    again: bool = False,
) -> None:
    """Record the outcome of ``ask`` for each fault that has none of ``finder`` yet. ``again``: for
    all faults."""
    for fault in faults:
        name = entry_name(fault.id, finder)
        if name not in store or again:
            outcome = ask(fault)
            if outcome is not None:
                store.add(name, outcome)
            print(f"{fault.id}: {describe(outcome) if outcome else 'no test in time'}", flush=True)


def chosen(faults: dict[str, Fault], ids: Sequence[str]) -> list[Fault]:
    """Return the named faults, or all. Raises ``UsageError`` for an unknown one."""
    if unknown := set(ids) - set(faults):
        raise UsageError(f"no such fault: {', '.join(sorted(unknown))}; {FAULTS} has them")
    return [fault for fault in faults.values() if not ids or fault.id in ids]


def copy_of(environment: str, finder: str = "cases") -> Copy:
    """Return the copy of an environment, which must be built. Each finder has its own."""
    target = built_target(environment, "sim")
    if target is None:
        raise UsageError(f"build it first: vllm-regress env build {environment}")
    place = writable_root() / "planted" / f"{target.python.parents[1].name}-{finder}"
    copy = Copy(target.python, place)
    copy.make()
    copy.restore({fault.path for fault in read_faults().values()})
    return copy


def confirm(store: Store[Outcome], copy: Copy) -> None:
    """Run the cases that found a fault once more, without any."""
    open_cases = {o.case for o in store.entries.values() if o.case and not o.without}
    cases = [case for case in load_all_cases(ROOT / "cases") if case.id in open_cases]
    for case in cases:
        results, *_ = run_cases(copy.python, [case], 4 * LIMITS_S["cases"])
        found = next(filter(is_finding, results), None)
        verdict = found.verdict.value if found else Verdict.FIXED.value if results else ""
        print(f"{case.id} without a fault: {verdict or 'no result'}", flush=True)
        changed = {
            fault_id: replace(outcome, without=verdict)
            for fault_id, outcome in store.entries.items()
            if outcome.case == case.id
        }
        store.add_all(changed)


def describe(outcome: Outcome) -> str:
    """Return an outcome as one line."""
    if outcome.found_by == "none":
        end = ", out of time" if outcome.out_of_time else ""
        return f"not found: ran {len(outcome.ran)}, could notice it {outcome.executing}; {outcome.seconds:.0f} s{end}"
    what = ", ".join(outcome.containers) or outcome.reason
    by = outcome.case or outcome.test
    return f"found by {outcome.found_by} after {outcome.seconds:.0f} s: {by}: {what}"


_FOUND_BY = {
    "case": "a case",
    "invariant": "an invariant",
    "exercise": "the exercise",
    "upstream": "upstream's tests",
}
_COUNTS: Mapping[str, Callable[[Outcome], bool]] = {
    "tried": lambda outcome: True,
    "found": lambda outcome: outcome.found,
    "run without finding it": lambda outcome: outcome.missed and not outcome.out_of_time,
    "not in time": lambda outcome: outcome.missed and outcome.out_of_time,
    "nothing executes it": lambda outcome: not outcome.executing,
}


def table(entries: Mapping[str, Outcome], faults: Mapping[str, Fault]) -> Iterator[str]:
    """Yield the figures as Markdown: what found how many faults in each area, then how far each
    finder came."""
    found: dict[str, set[str]] = {fault_id: set() for fault_id in faults}
    by_finder: dict[str, list[Outcome]] = {}
    for name, outcome in entries.items():
        fault_id, _, finder = name.partition(" ")
        found[fault_id] |= {outcome.found_by} if outcome.found else set()
        by_finder.setdefault(finder, []).append(outcome)
    yield from _row("area", "faults", *(f"by {by}" for by in _FOUND_BY.values()), "by any")
    yield "| --- " * (len(_FOUND_BY) + 3) + "|"
    for area in (*dict.fromkeys(fault.area for fault in faults.values()), ""):
        ids = [fault.id for fault in faults.values() if area in ("", fault.area)]
        counts = [sum(by in found[fault_id] for fault_id in ids) for by in _FOUND_BY]
        yield from _row(area or "all", len(ids), *counts, sum(bool(found[i]) for i in ids))
    yield ""
    yield from _row("finder", *_COUNTS, "first answer, median")
    yield "| --- " * (len(_COUNTS) + 2) + "|"
    for finder, outcomes in by_finder.items():
        times = [outcome.seconds for outcome in outcomes if outcome.found]
        first = f"{median(times):.0f} s" if times else "-"
        yield from _row(finder, *(sum(map(c, outcomes)) for c in _COUNTS.values()), first)


def _row(*cells: object) -> Iterator[str]:
    yield f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Measure, confirm, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="ids (default: all)")
    parser.add_argument("--source", type=Path, help="a clone of vLLM's sources, for the order")
    parser.add_argument("--again", action="store_true", help="also faults that have a result")
    parser.add_argument("--limit", type=float, help="seconds for each fault")
    parser.add_argument("--invariants", default="", help="name of their state, for the record")
    parser.add_argument("--confirm", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--engines", action="store_true", help="upstream's tests that start any")
    parser.add_argument("--finder", choices=list(LIMITS_S), default="cases")
    options = parser.parse_args()
    store = Store(options.record, Outcome, what="faults planted in a release", key=ENVIRONMENT)
    if not options.table:
        store.lock()
        if options.source is None:
            parser.error("--source CLONE is needed for the order of the cases and tests")
        ask(options, store)
    print(*table(store.entries, read_faults()), sep="\n")
    return 0


def ask(options: argparse.Namespace, store: Store[Outcome]) -> None:
    """Run the chosen finder on the chosen faults; on none with ``--confirm``."""
    clone, copy = Repository.at(options.source), copy_of(ENVIRONMENT, options.finder)
    limit_s = options.limit or LIMITS_S[options.finder]
    faults = chosen(read_faults(), options.faults)
    if options.finder == "upstream":
        ask_upstream(faults, store, copy, clone, options)
    elif options.finder == "exercise":
        place = writable_root() / "planted" / f"exercise-{workload_id()[:16]}.jsonl"
        known = Store(place, KnownStation, what="the exercise without a fault", key=ENVIRONMENT)
        exercise = ExerciseBench(copy, known, limit_s)
        exercise.learn(all_functions(read_faults().values(), copy))
        if options.confirm:
            exercise.confirm(store)
        else:
            measure(faults, store, options.finder, exercise.outcome, options.again)
    elif options.confirm:
        confirm(store, copy)
    else:
        candidates = Candidates(load_all_cases(ROOT / "cases"), clone)
        bench = Bench(copy, candidates, limit_s, options.invariants)
        measure(faults, store, options.finder, bench.outcome, options.again)


def ask_upstream(
    faults: Sequence[Fault],
    store: Store[Outcome],
    copy: Copy,
    clone: Repository,
    options: argparse.Namespace,
) -> None:
    """Record the outcome of upstream's tests for the faults that have none yet."""
    release, place = ENVIRONMENT.removeprefix("vllm-"), writable_root() / "planted"
    found = place / "found.jsonl"
    with scratch() as folder:
        tree = write_tree(clone, f"v{release}", folder, release=release, say=print)
        tests = UpstreamTests(copy, clone, tree, place / "sound-tests.jsonl", options.engines)
        tests.keep(faults, found, store)  # what a killed run has left
        to_ask = [f for f in faults if options.again or entry_name(f.id, "upstream") not in store]
        try:
            tests.run(to_ask, found, options.limit or LIMITS_S["upstream"])
        finally:
            tests.keep(to_ask, found, store)


if __name__ == "__main__":
    sys.exit(main())
