"""Bisection over releases: the algorithm on any history, the search with simulated runs, its log,
and the answer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.rates import Rate
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments import releases
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.history import algorithm as bisection
from pytest_vllm_regress.history.algorithm import (
    CandidateState,
    Direction,
    changes,
    most_runs,
    next_candidate,
)
from pytest_vllm_regress.history.bisect import ReleaseAnswer
from pytest_vllm_regress.history.candidates import (
    BisectPlan,
    CandidateResult,
    CandidateRunner,
    CandidateSearch,
    open_results,
    state_of,
)
from pytest_vllm_regress.runner.batch import Batch, RunOutcome
from pytest_vllm_regress.util.store import Store
from tests.helpers.cases import CaseFile

CASE = CaseFile(
    upstream=("https://github.com/vllm-project/vllm/issues/1",),
    affected=">=0.3,<0.8.5",
    old=(),
    new=(),
)


def search(
    history: Sequence[CandidateState], probes: int | None = None
) -> dict[int, CandidateState]:
    """Return the states of all candidates that are tried, in order."""
    known: dict[int, CandidateState] = {}
    while (index := next_candidate(len(history), known, probes)) is not None:
        assert index not in known
        known[index] = history[index]
    return known


@given(
    st.integers(2, 400).flatmap(
        lambda n: st.tuples(st.just(n), st.integers(1, n - 1), st.booleans())
    )
)
def test_one_change_is_found_within_the_bound(drawn: tuple[int, int, bool]) -> None:
    count, at, fix = drawn
    old, new = (
        (CandidateState.BAD, CandidateState.GOOD)
        if fix
        else (CandidateState.GOOD, CandidateState.BAD)
    )
    known = search([old] * at + [new] * (count - at))
    (change,) = changes(count, known)
    assert (change.low, change.high, change.is_fix) == (at - 1, at, fix)
    assert len(known) <= most_runs(count)


@given(st.lists(st.sampled_from(list(CandidateState)), min_size=1, max_size=60))
def test_changes_match_any_history(history: list[CandidateState]) -> None:
    known = search(history)
    assert all(history[index] is state for index, state in known.items())
    for change in changes(len(history), known):
        assert (history[change.low], history[change.high]) == (change.before, change.after)
        assert all(
            history[index] is CandidateState.SKIPPED for index in range(change.low + 1, change.high)
        )
    clear = [state for state in history if state is not CandidateState.SKIPPED]
    if clear and clear[0] is not clear[-1]:
        assert changes(len(history), known)
    if not clear:
        assert set(known) == set(range(len(history)))


def test_equal_ends_are_followed_by_probes_between_them() -> None:
    history = [CandidateState.GOOD] * 4 + [CandidateState.BAD] * 4 + [CandidateState.GOOD] * 4
    changes_between = changes(12, search(history))
    assert [(change.low, change.high, change.is_fix) for change in changes_between] == [
        (3, 4, False),
        (7, 8, True),
    ]
    assert len(search([CandidateState.GOOD] * 64)) <= 2 * most_runs(64)
    assert len(search([CandidateState.GOOD] * 64, probes=0)) == 2


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return CASE.write(tmp_path / "cases")


RELEASES = tuple(map(Version, ["0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.8.post1", "0.9"]))


class StandIn:
    """Stand-in for the runner: returns the verdict of ``truth`` for each release, records the runs,
    and may be interrupted."""

    def __init__(self, truth: Mapping[str, Verdict | str], interrupt_at: int | None = None) -> None:
        self.truth = truth
        self.ran: list[str] = []
        self.interrupt_at = interrupt_at

    def run(self, jobs: Sequence[Batch]) -> RunOutcome:
        (job,) = jobs
        release = job.environment.removeprefix("env-")
        if self.interrupt_at == len(self.ran):
            return RunOutcome(RunResult(), interrupted=True)
        self.ran.append(release)
        verdict = self.truth.get(release, Verdict.FIXED)
        if isinstance(verdict, str):
            return RunOutcome(
                RunResult(
                    (
                        TestResult(
                            "demo", "t", Verdict.INCONCLUSIVE, verdict, "sim", job.environment
                        ),
                    )
                ),
                (job.environment,),
            )
        return RunOutcome(
            RunResult((TestResult("demo", "t", verdict, "as seen", "sim", job.environment),))
        )


def run_search(
    case: Case, stand_in: StandIn, results: Store[CandidateResult], lines: list[str] | None = None
) -> CandidateSearch:
    tell = (lines if lines is not None else []).append
    names = tuple(map(str, RELEASES))
    plan = BisectPlan(case, names, tuple(f"env-{name}" for name in names))
    bisection = CandidateSearch(plan, results, CandidateRunner(stand_in.run, None, tell))
    bisection.run()
    return bisection


def results_in(tmp_path: Path) -> Store[CandidateResult]:
    """Return the results so far, as another process finds them."""
    results = open_results(["demo"], tmp_path / "results" / "n.jsonl")
    results.close()
    return results


BAD_UNTIL_0_7 = dict.fromkeys(("0.3", "0.4", "0.5", "0.6", "0.7"), Verdict.REPRODUCED)


def test_answer_names_releases_days_and_tags(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReleaseAnswer, "_day", lambda self, version: "2025-01-01")
    results = results_in(tmp_path)
    run_search(case, StandIn({**BAD_UNTIL_0_7, "0.6": "no solution"}), results)
    answer = ReleaseAnswer.of(
        case, "vllm", tuple(map(str, RELEASES)), results.entries, Direction.FIX
    )
    assert answer.lines()[-1] == (
        "demo: fixed between vllm v0.7 (2025-01-01) and v0.8 (2025-01-01); https://github.com/vllm-project/vllm/compare/v0.7...v0.8"
    )
    assert answer.lines()[0].startswith("skipped 0.6: INCONCLUSIVE: no solution")
    assert answer.to_json()["changes"][0]["tags"] == ["v0.7", "v0.8"]
    other_way = ReleaseAnswer.of(
        case, "vllm", tuple(map(str, RELEASES)), results.entries, Direction.BREAK
    )
    assert not other_way.changes
    assert "only one in the other direction" in other_way.lines()[-1]


def test_releases_that_a_full_disk_left_out_are_named_last(case: Case, tmp_path: Path) -> None:
    class FullDisk(StandIn):
        def run(self, jobs: Sequence[Batch]) -> RunOutcome:
            outcome = super().run(jobs)
            is_lost = self.ran[-1] == "0.7"
            return RunOutcome(outcome.run, lost=("env-0.7",)) if is_lost else outcome

    results = results_in(tmp_path)
    stand_in = FullDisk({**BAD_UNTIL_0_7, "0.7": Verdict.INCONCLUSIVE})
    run_search(case, stand_in, results)
    names = tuple(map(str, RELEASES))
    answer = ReleaseAnswer.of(case, "vllm", names, results.entries, Direction.FIX)
    assert answer.lines()[-1].endswith("(a full disk): 0.7. Free some space and repeat the command")
    assert stand_in.ran.count("0.7") == 1


def test_a_candidate_runs_as_often_as_the_measured_rate_needs(case: Case, tmp_path: Path) -> None:
    """The oldest release shows the failure in one of two runs: later ones need seven for 99 %."""

    class Race(StandIn):
        def run(self, jobs: Sequence[Batch]) -> RunOutcome:
            outcome = super().run(jobs)
            hides = self.ran.count(self.ran[-1]) % 2
            fixed = TestResult("demo", "t", Verdict.FIXED, "", "sim", jobs[0].environment)
            return RunOutcome(RunResult((fixed,))) if hides else outcome

    names = tuple(map(str, RELEASES))
    plan = BisectPlan(case, names, tuple(f"env-{name}" for name in names))

    def search_in(truth: Mapping[str, Verdict | str], file: str) -> Mapping[str, CandidateResult]:
        results = open_results(["demo"], tmp_path / file)
        runner = CandidateRunner(Race(truth).run, None, lambda line: None, trials=2)
        CandidateSearch(plan, results, runner).run()
        results.close()
        return results.entries

    entries = search_in(BAD_UNTIL_0_7, "fix.jsonl")
    assert (entries["0.3"].bad, entries["0.3"].runs) == (1, 2)
    assert entries["0.9"].runs == 7
    (fix,) = ReleaseAnswer.of(case, "vllm", names, entries, Direction.FIX).changes
    assert (fix.low, fix.high) == (4, 5)
    # As often as earlier runs of this machine tell.
    told, results = (Rate(case.id, "env-0.3", 1, 2),), open_results(["demo"], tmp_path / "told")
    runner = CandidateRunner(StandIn({}).run, None, lambda line: None, rates=told)
    CandidateSearch(dataclasses.replace(plan, candidates=names[:1]), results, runner).run()
    assert results.entries["0.3"].runs == 7
    # The oldest had passed twice before the newest told the rate.
    entries = search_in(dict.fromkeys(names[5:], Verdict.REGRESSED), "break.jsonl")
    assert (entries["0.3"].state, entries["0.3"].runs) == (CandidateState.GOOD, 7)


def test_the_range_of_the_case_file_is_ignored(case: Case, tmp_path: Path) -> None:
    truth = {
        "0.3": Verdict.UNEXPECTEDLY_FIXED,
        "0.4": Verdict.UNEXPECTEDLY_FIXED,
        "0.9": Verdict.REGRESSED,
        "0.8.post1": Verdict.REGRESSED,
    }
    bisection = run_search(case, StandIn(truth), results_in(tmp_path))
    (change,) = changes(len(RELEASES), bisection.known())
    assert (str(RELEASES[change.low]), str(RELEASES[change.high]), change.is_fix) == (
        "0.8",
        "0.8.post1",
        False,
    )


def test_inconclusive_is_repeated_and_then_skipped(case: Case, tmp_path: Path) -> None:
    stand_in = StandIn(
        {**BAD_UNTIL_0_7, "0.6": Verdict.INCONCLUSIVE, "0.5": Verdict.NOT_APPLICABLE}
    )
    bisection = run_search(case, stand_in, results_in(tmp_path))
    assert stand_in.ran.count("0.6") == 2
    assert stand_in.ran.count("0.5") <= 1
    (change,) = changes(len(RELEASES), bisection.known())
    assert (change.low, change.high) == (4, 5)


@pytest.mark.parametrize("at", range(5))
def test_interrupted_and_resumed_runs_nothing_twice(case: Case, tmp_path: Path, at: int) -> None:
    first = StandIn(BAD_UNTIL_0_7, interrupt_at=at)
    with pytest.raises(KeyboardInterrupt):
        run_search(case, first, results_in(tmp_path))
    second = StandIn(BAD_UNTIL_0_7)
    lines: list[str] = []
    run_search(case, second, results_in(tmp_path), lines)
    assert not set(first.ran) & set(second.ran)
    assert len(first.ran) + len(second.ran) <= most_runs(len(RELEASES))
    assert not at or any(line.startswith("resumed: 0.3 bad") for line in lines)


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"store": "the results of a bisection", "key": ["other"]}',
        '{"store": "the results of a bisection", "key": ["demo"]}\n[]',
    ],
)
def test_the_file_of_something_else_is_refused_unless_the_search_starts_over(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "n.jsonl"
    path.write_text(f"{content}\n")
    with pytest.raises(UsageError, match="--fresh"):
        open_results(["demo"], path)
    assert dict(open_results(["demo"], path, fresh=True).entries) == {}


def test_the_same_search_is_refused_while_it_runs(tmp_path: Path) -> None:
    running = open_results(["demo"], tmp_path / "n.jsonl")
    for fresh in (False, True):
        with pytest.raises(UsageError, match="in use by process"):
            open_results(["demo"], tmp_path / "n.jsonl", fresh=fresh)
    running.close()
    open_results(["demo"], tmp_path / "n.jsonl").close()


def test_state_follows_from_the_verdicts() -> None:
    def of(*verdicts: Verdict) -> CandidateState | None:
        return state_of([TestResult("demo", "t", verdict, "", "sim", "e") for verdict in verdicts])

    assert of(Verdict.FIXED, Verdict.REPRODUCED, Verdict.UNEXPECTEDLY_FIXED) is CandidateState.BAD
    assert of(Verdict.FIXED, Verdict.NOT_APPLICABLE) is CandidateState.GOOD
    assert of(Verdict.NOT_APPLICABLE) is CandidateState.SKIPPED
    assert of(Verdict.FIXED, Verdict.INCONCLUSIVE) is None
    assert of() is None


def test_releases_are_stable_and_in_order() -> None:
    answer = json.dumps(
        {
            "name": "x",
            "versions": [
                "0.10.0",
                "0.9.2",
                "0.10.1rc1",
                "0.9.0.1",
                "junk",
                "0.8.5.post1",
                "0.9.0.dev3",
            ],
        }
    )
    assert list(map(str, releases.parse(answer))) == ["0.8.5.post1", "0.9.0.1", "0.9.2", "0.10.0"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--find", "both"], "is not one of"),
        (["--good", "0.9"], "belong together"),
        (["--good", "0.9", "--bad", "x"], "--bad 'x': not a version"),
        (["--good", "0.9.2", "--bad", "0.9.2"], "a bisection needs two. Give other ends"),
        (["--releases", "new"], "not a PEP 440 specifier"),
        (["--releases", ">9"], "0 of 8 releases"),
        (["--releases", "xgrammar>=0"], "names no evidence environment"),
        (["--env", "vllm-0.8.5"], "--env is for another package"),
        (["--device", "tpu"], "'tpu' is not one of"),
    ],
)
def test_bad_input_ends_with_2(
    case: Case,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pytest_vllm_regress.history.bisect.releases", lambda package: RELEASES)
    assert cli.main(["--cases", str(case.directory.parent), "bisect", "demo", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_most_runs_is_logarithmic() -> None:
    assert [bisection.most_runs(count) for count in (1, 2, 3, 12, 64)] == [2, 3, 4, 6, 8]
    assert CandidateResult(CandidateState.BAD, "x").state is CandidateState.BAD


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("at", [0, 1, 2, 50, 99])
def test_the_steps_left_are_never_too_few_and_reach_zero(count: int, at: int) -> None:
    known: dict[int, CandidateState] = {}
    left = bisection.runs_left(count, known)
    assert left == min(count, bisection.most_runs(count))
    while (index := bisection.next_candidate(count, known)) is not None:
        assert left > 0
        known[index] = CandidateState.BAD if index < at else CandidateState.GOOD
        if 0 < at < count or len(known) < 2:
            assert bisection.runs_left(count, known) < left
        left = bisection.runs_left(count, known)
    assert left == 0
