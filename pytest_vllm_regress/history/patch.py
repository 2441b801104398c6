"""The effect of a patch on the cases: each runs on the work tree, and once on the commit that it
is compared with."""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._version import __version__
from ..answers.fixes.index import FixIndex
from ..cases.model import Case
from ..cases.proofs.proof import lock_id, recorded_versions
from ..cases.results import Cell, RunResult, TestResult, merge_results, verdict_of
from ..cases.verdict import Verdict
from ..environments.git import Commit, Repository
from ..environments.names import resolve
from ..environments.sources import Source, find_source, parse_name, set_clones
from ..errors import UsageError
from ..runner.batch import Batch, Executor, RunOptions, RunOutcome
from ..runner.journal import Journal
from ..runner.plan import BATCH_S, ENVIRONMENT_S, recorded_seconds, split_batch
from ..runner.progress import CaseLines, Say
from ..runner.run import RunRequest, run_batches
from ..util.files import expand_home, peek
from ..util.paths import writable_root
from ..util.report import Report, Section, Table
from ..util.text import one_line
from .case_coverage import CaseCoverage
from .changed_functions import ChangedFunctions, changed_functions
from .commits import UPSTREAM

KEPT_BASES = 40
"""Results of bases, of cases and of upstream's tests, that are kept in the cache."""
MAX_CLOSE = 12
"""Cases that are run first on both sides, so that first answers come before the base of all."""
_MAX_SHOWN = 10
"""Changes that a report describes: with three lines for each, and eight of the exercise, a comment
has at most 60."""
_MAX_TESTS = 3
_MAX_NAMES = 20
_MAX_TEXT = 1024 * 1024

_PULL = re.compile(r"/pull/(\d+)\Z")


class PatchEffect(enum.StrEnum):
    """Effect of the patch on a case. ``UNCLEAR``: one side gave no clear verdict. ``NOT_RUN``: the
    base shows the failure already, is unclear, or the case does not apply, so nothing can break."""

    BREAKS = "breaks"
    FIXES = "fixes"
    UNCLEAR = "unclear"
    UNCHANGED = "leaves"
    NOT_RUN = "not run"


Recorded = Callable[[], contextlib.AbstractContextManager[None]]
_CHANGES = (PatchEffect.BREAKS, PatchEffect.FIXES, PatchEffect.UNCLEAR)


@dataclass(frozen=True)
class CaseEffect:
    """PatchEffect of the patch on one case.

    ``before``, ``after``: the verdicts without and with the patch.
    ``tests``: the tests with that effect. ``why``: the reason that the first of them gave.
    """

    case: Case
    effect: PatchEffect
    before: str
    after: str
    tests: tuple[str, ...] = ()
    why: str = ""


def base_of(source: Source, against: str | None) -> Commit:
    """Return the commit to compare with: ``against``; else where the branch left upstream's; else
    HEAD if there are uncommitted changes.

    Raises ``UsageError`` if there is nothing to compare with.
    """
    repository = source.repository
    if against is not None:
        return repository.commit(against)
    repository.need_history()
    for name in UPSTREAM:
        if repository.has(name):
            base = repository.merge_base(source.commit.id, name)
            if base is not None and base != source.commit.id:
                return repository.commit(base)
    if source.changed:
        return source.commit
    raise UsageError(
        f"{source.tree}: no changes, and {source.commit.id[:10]} is in upstream's branch: there is no patch to try. "
        "Give a commit to compare with: --base REV"
    )


def changed_files(source: Source, base: Commit) -> frozenset[str]:
    """Return the files of the package that differ between the work tree and ``base``, including new
    and removed ones."""
    return _differing(*_both_sides(source, base))


def _both_sides(source: Source, base: Commit) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the files of the package of ``base`` and of the work tree."""
    listed = source.repository.files(base.id, source.project.folder)
    before = dict(zip(listed, source.repository.contents(listed.values()), strict=True))
    return before, dict(source.files())


def _differing(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> frozenset[str]:
    return frozenset(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


def nearness(
    cases: Iterable[Case],
    changed: frozenset[str],
    functions: ChangedFunctions,
    repository: Repository,
) -> dict[str, tuple[int, int, int, int]]:
    """Return how close each case, by its id, is to the changed files: the number of them that its
    documented fix touched, the number that its own files name, the number of changed functions that
    it executed when that was recorded, and the number of folders in which its fix changed a file."""
    modules = {path.removesuffix(".py").replace("/", ".") for path in changed} | set(changed)
    touched: dict[str, set[str]] = {}
    for commit in repository.commits_touching(sorted(changed)):
        touched.setdefault(commit.pull_request, set()).update(changed.intersection(commit.touched))
    folders = {
        str(fix.number): set(map(os.path.dirname, fix.files)) for fix in FixIndex.load().fixes
    }
    near = set(map(os.path.dirname, changed))

    coverage, names = CaseCoverage.load(), set(functions.names)

    def of(case: Case) -> tuple[int, int, int, int]:
        pulls = [match[1] for url in case.fixed_by if (match := _PULL.search(url))]
        text = "\n".join(
            peek(file, _MAX_TEXT)
            for pattern in ("*.py", "*.toml", "*.md")
            for file in sorted(case.directory.glob(pattern))
        )
        return (
            len(set().union(*(touched.get(pull, ()) for pull in pulls))),
            sum(module in text for module in modules),
            len(names & coverage.executed_by(case.id)),
            sum(any(folder in folders.get(pull, ()) for pull in pulls) for folder in near),
        )

    return {case.id: of(case) for case in cases}


def effect_on(
    case: Case, before: Sequence[TestResult], after: Sequence[TestResult] | None
) -> CaseEffect:
    """Return the gravest effect of a patch on any test of a case, from the results on both sides.

    ``after``: None if the case was not run with the patch.
    """
    old_verdict = verdict_of(before).value if before else "no result"
    if after is None:
        return CaseEffect(case, PatchEffect.NOT_RUN, old_verdict, "")
    new_verdict = verdict_of(after).value if after else "no result"
    new_results = {result.test: result for result in after}
    reasons = (one_line(r.reason) for r in after if r.test not in {old.test for old in before})
    no_result = next(reasons, "no result with the patch")
    by_effect: dict[PatchEffect, dict[str, str]] = {}
    for old in before:
        new = new_results.get(old.test)
        # What the base keeps of ended requests, the patch does not break.
        effect, why = PatchEffect.UNCLEAR, no_result
        if new is not None:
            effect = _effect_on_test(_apart_from(old.held, old), _apart_from(old.held, new))
            why = one_line(new.reason)
        by_effect.setdefault(effect, {})[old.test] = why
    effect = next((effect for effect in PatchEffect if effect in by_effect), PatchEffect.UNCLEAR)
    tests = by_effect.get(effect, {}) if effect is not PatchEffect.UNCHANGED else {}
    why = next(iter(tests.values()), "")
    return CaseEffect(case, effect, old_verdict, new_verdict, tuple(tests), why)


def _effect_on_test(before: Verdict, after: Verdict) -> PatchEffect:
    """Return the effect on one test.

    Any failure of a test that passed before is a break; another failure than the documented one is
    no fix.
    """
    unclear = after is Verdict.INCONCLUSIVE
    if before.shown is False and (after.shown or unclear):
        return PatchEffect.BREAKS
    if before.shown and after.shown is False:
        return PatchEffect.FIXES
    unclear |= before is Verdict.INCONCLUSIVE or before.shown is not after.shown
    return PatchEffect.UNCLEAR if unclear else PatchEffect.UNCHANGED


def _apart_from(held: tuple[str, ...], result: TestResult) -> Verdict:
    """Return the verdict of a test as if an engine might keep ended requests in the containers
    ``held``."""
    return Verdict.FIXED if result.held and set(result.held) <= set(held) else result.verdict


@dataclass(frozen=True)
class PatchComparison:
    """A comparison of the environments ``before`` and ``after`` the patch, both over the
    environment ``base_environment``.

    ``cases``: the closest to the changed files first, ``close`` of them. ``related``: ids of those
    that have to do with the changed files themselves, or that the user named.
    """

    base: Commit
    source: Source
    changed: frozenset[str]
    functions: ChangedFunctions
    cases: tuple[Case, ...]
    close: int
    related: frozenset[str]
    base_environment: str
    before: str
    after: str

    def check_unchanged(self) -> None:
        """Raise ``UsageError`` if the work tree is not what was to be compared any more."""
        tree = parse_name(f"vllm@{self.source.tree}")
        if tree is None or find_source(tree).key != self.source.key:
            raise UsageError(
                f"{self.source.tree}: a file was changed while this command was running: repeat it"
            )

    def groups(self) -> Iterator[tuple[Case, ...]]:
        """Yield the close cases, then the others: the first answers do not wait for the base of
        all."""
        yield from filter(None, (self.cases[: self.close], self.cases[self.close :]))


def plan_comparison(
    tree: Path,
    cases: tuple[Case, ...],
    sort_cases: bool,
    against: str | None,
    environment: str | None,
) -> PatchComparison:
    """Find the base and the changed files of a work tree of vLLM.

    ``sort_cases``: run those first that concern the changed modules most. ``against``: the revision
    to compare with; ``environment``: what both sides are laid over; None: what fits best. Raises
    ``UsageError`` if nothing was changed.
    """
    name = parse_name(f"vllm@{expand_home(tree).absolute()}")
    assert name is not None
    source = find_source(name)
    set_clones([str(source.tree)])  # the base is a commit of the tree's own repository
    base = base_of(source, against)
    sides = _both_sides(source, base)
    changed = _differing(*sides)
    if not changed:
        raise UsageError(
            f"{tree}: its vllm/ is that of {base.id[:10]}: nothing to try. Give what to compare with: --base REV"
        )
    functions = changed_functions(changed, *sides)
    related, close = frozenset(case.id for case in cases), len(cases)
    if sort_cases:
        near = nearness(cases, changed, functions, source.repository)
        shortest_first = sorted(cases, key=lambda case: recorded_seconds(case, ""))
        cases = tuple(sorted(shortest_first, key=lambda case: near[case.id], reverse=True))
        related = frozenset(case_id for case_id, numbers in near.items() if any(numbers[:2]))
        close = min(sum(map(any, near.values())), MAX_CLOSE)
    if environment is None:
        overlay = resolve(f"vllm@{base.id}").overlay
        assert overlay is not None
        environment = overlay.base.name
    before, after = f"{environment}+vllm@{base.id}", f"{environment}+vllm@{source.tree}"
    return PatchComparison(
        base, source, changed, functions, cases, close, related, environment, before, after
    )


class BaseVerdicts(Journal):
    """Verdicts on a base, kept for the next patch to it: by its code, the release below it, and
    each case. The simulated device is the only one for code without its own compiled parts.

    An INCONCLUSIVE verdict is kept only if the test saw something: otherwise it says more about this
    run than about the base.
    """

    def __init__(self, comparison: PatchComparison, pytest_args: Sequence[str]) -> None:
        root, below = writable_root() / "try-bases", comparison.base_environment
        super().__init__(
            root, [comparison.before, below, lock_id(below), __version__, *pytest_args]
        )
        with contextlib.suppress(OSError):  # another command removes them at this moment
            others = set(root.glob("*")) - {self.directory}
            for oldest in sorted(others, key=lambda path: path.stat().st_mtime)[:-KEPT_BASES]:
                shutil.rmtree(oldest) if oldest.is_dir() else oldest.unlink()

    def add(self, batch: Batch, run: RunResult) -> None:
        unclear = {
            r.case_id
            for r in run.results
            if r.verdict is Verdict.INCONCLUSIVE and r.observation is None
        }
        super().add(batch.without(unclear), run)


@dataclass(frozen=True)
class PatchRunner:
    """How the cases are run: ``executor`` makes what runs one set of batches and shows it, of
    which ``at_once`` run side by side."""

    options: RunOptions
    executor: Callable[[CaseLines], Executor]
    at_once: int
    say: Say

    def run(
        self, name: str, cases: Sequence[Case], journal: Journal, note: Callable[[Cell], str]
    ) -> RunOutcome:
        """Run cases in one environment, in their order, and return the outcome."""
        batch = Batch(name, tuple(cases), {})
        seconds = sum(recorded_seconds(case, name) for case in cases) / self.at_once
        parts = split_batch(batch, ENVIRONMENT_S + max(BATCH_S[0], seconds + 1), recorded_seconds)
        progress = CaseLines(self.say, logs=False, bar=not self.options.verbose, note=note)
        request = RunRequest(parts, self.executor(progress), self.options, progress, journal)
        return run_batches(request)


@dataclass(frozen=True)
class PatchReport:
    """What a patch does to each case, the results of both sides, and how the runs ended.

    ``not_executed``: changed functions that no case executed with the patch, and if
    ``with_upstream`` no test of upstream's either.
    """

    comparison: PatchComparison
    effects: tuple[CaseEffect, ...]
    run: RunResult
    outcomes: tuple[RunOutcome, ...]
    not_executed: tuple[str, ...]
    with_upstream: bool = False

    @property
    def interrupted(self) -> bool:
        return any(outcome.interrupted for outcome in self.outcomes)

    def having(self, effect: PatchEffect) -> tuple[CaseEffect, ...]:
        """Return the effects of this kind."""
        return tuple(one for one in self.effects if one.effect is effect)

    def with_tests(self, not_executed: Iterable[str]) -> PatchReport:
        """Return the report with upstream's tests, which did not execute these functions."""
        neither = tuple(name for name in self.not_executed if name in set(not_executed))
        return replace(self, not_executed=neither, with_upstream=True)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--format json``."""
        names = ("effect", "before", "after", "tests", "why")
        comparison = self.comparison
        return {
            "base": comparison.base.id,
            "over": comparison.base_environment,
            "changed": sorted(comparison.changed),
            "functions": comparison.functions.names,
            "not_executed": self.not_executed,
            "cases": [
                {"case": one.case.id, **{name: getattr(one, name) for name in names}}
                for one in self.effects
            ],
        }

    def report(self) -> Report:
        """Return what the patch changes, and which cases were not run and why: at most 60 lines of
        Markdown, for a comment."""
        base = self.comparison.base.id[:10]
        changes = [one for effect in _CHANGES for one in self.having(effect)]
        table = Table(
            ("the patch", "case", f"at {base}", "with the patch"),
            [(one.effect, one.case.id, one.before, one.after) for one in changes[:_MAX_SHOWN]],
        )
        details = tuple(line for one in changes[:_MAX_SHOWN] for line in self._details(one))
        more = [f"and {len(changes) - _MAX_SHOWN} more"] if changes[_MAX_SHOWN:] else []
        parts: list[str | tuple[str, ...] | Table] = [self._summary()]
        parts += [table, details, *more] if changes else []
        parts += [*self._functions(), *self._not_run(), *self._versions()]
        return Report(sections=[Section(parts=parts)])

    def _summary(self) -> str:
        number = {effect: len(self.having(effect)) for effect in PatchEffect}
        words = [f"breaks {number[PatchEffect.BREAKS] or 'none'} of {len(self.effects)} cases"]
        words.append(f"fixes {number[PatchEffect.FIXES] or 'none'}")
        for effect, text in (
            (PatchEffect.UNCHANGED, "the same on both sides"),
            (PatchEffect.UNCLEAR, "without a clear verdict on both sides"),
            (PatchEffect.NOT_RUN, "not run with the patch"),
        ):
            words += [f"{number[effect]} {text}"] if number[effect] else []
        return f"The patch {', '.join(words[:2])}; {', '.join(words[2:])}".rstrip("; ")

    def _details(self, one: CaseEffect) -> Iterator[str]:
        tests = ", ".join(one.tests[:_MAX_TESTS]) or "no test gave a clear verdict"
        if one.tests[_MAX_TESTS:]:
            tests += f" and {len(one.tests) - _MAX_TESTS} more"
        yield f"{one.effect} {one.case.id}: {tests}: {one.why}"
        comparison = self.comparison
        options = ["--base", comparison.base.id[:10], "--env", comparison.base_environment]
        tree = str(comparison.source.tree)
        yield f"again: {shlex.join(['vllm-regress', 'try', tree, one.case.id, *options])}"

    def _functions(self) -> Iterator[str]:
        """Yield how many of the changed functions were executed, and which were not."""
        number, missing = len(self.comparison.functions.names), self.not_executed
        ran = len(self.effects) - len(self.having(PatchEffect.NOT_RUN))
        what = f"the {ran} cases that were run{' and upstream tests' * self.with_upstream}"
        if missing:
            names = ", ".join(missing[:_MAX_NAMES])
            more = f" and {len(missing) - _MAX_NAMES} more" if missing[_MAX_NAMES:] else ""
            yield f"{len(missing)} of {number} changed functions are not exercised by {what}: {names}{more}"
        elif number:
            yield f"Every changed function ({number}) is exercised by {what}"
        if outside := self.comparison.functions.outside:
            yield f"Code outside functions, which runs at the import, is changed in {', '.join(outside[:_MAX_NAMES])}"

    def _not_run(self) -> Iterator[str]:
        """Yield which cases were not run, by what they are at the base."""
        by_verdict: dict[str, list[str]] = {}
        for one in self.having(PatchEffect.NOT_RUN):
            by_verdict.setdefault(one.before, []).append(one.case.id)
        for verdict, ids in by_verdict.items():
            yield f"Not run, because {verdict} at the base already ({len(ids)}): {', '.join(ids)}"

    def _versions(self) -> Iterator[str]:
        """Yield where the cases were run."""
        ran = next((result for result in self.run.results if "vllm" in result.versions), None)
        if ran is not None:
            versions = [f"{name} {v}" for name, v in recorded_versions(ran.versions, None).items()]
            yield f"On device {ran.device}, with {', '.join(versions)}"


def compare(
    comparison: PatchComparison,
    runner: PatchRunner,
    *,
    base_again: bool = False,
    after_closest: Callable[[Recorded], None] | None = None,
) -> PatchReport:
    """Run the cases on the base, unless its verdicts are known, and with the patch where that can
    change something: a case that the base fails already, or that is unclear there, is run only if
    it is related to the changed files, because the patch may fix it.

    ``after_closest`` is called before the farther cases are run, with what provides a block: what
    processes execute that are started in it, counts as exercised."""
    base = BaseVerdicts(comparison, runner.options.pytest_args)
    key = [*(lock_id(name) for name in (comparison.before, comparison.after))]
    key += [comparison.base_environment, *(case.id for case in comparison.cases)]
    patched = Journal(writable_root() / "try", [*key, *runner.options.pytest_args])
    if base_again:
        base.close()
    effects: list[CaseEffect] = []
    outcomes: list[RunOutcome] = []
    for cases in comparison.groups():
        outcomes.append(runner.run(comparison.before, cases, base, lambda cell: ""))
        base.release()
        before = _by_case(outcomes[-1].run.results)
        if outcomes[-1].interrupted or outcomes[-1].unbuilt:
            break
        to_run = [case for case in cases if _is_worth_a_run(case, before, comparison.related)]
        after: dict[str, list[TestResult]] = {case.id: [] for case in to_run}
        if to_run:
            with comparison.functions.recorded(patched.directory):
                note = functools.partial(_note, before)
                outcomes.append(runner.run(comparison.after, to_run, patched, note))
            after |= _by_case(outcomes[-1].run.results)
        effects += [effect_on(case, before.get(case.id, ()), after.get(case.id)) for case in cases]
        if outcomes[-1].interrupted:
            break
        if after_closest is not None:
            after_closest(functools.partial(comparison.functions.recorded, patched.directory))
            after_closest = None
    not_executed = comparison.functions.not_executed(patched.directory)
    if not any(outcome.interrupted or outcome.lost for outcome in outcomes):
        patched.close()
        comparison.check_unchanged()
    return PatchReport(
        comparison,
        tuple(effects),
        merge_results(outcome.run for outcome in outcomes),
        tuple(outcomes),
        not_executed,
    )


def _by_case(results: Iterable[TestResult]) -> dict[str, list[TestResult]]:
    by_case: dict[str, list[TestResult]] = {}
    for result in results:
        by_case.setdefault(result.case_id, []).append(result)
    return by_case


def _is_worth_a_run(
    case: Case, before: Mapping[str, Sequence[TestResult]], related: frozenset[str]
) -> bool:
    results = before.get(case.id, ())
    verdict = verdict_of(results)
    can_break = verdict.shown is False or (
        verdict is Verdict.INCONCLUSIVE and any(r.verdict.shown is False or r.held for r in results)
    )
    return can_break or case.id in related


def _note(before: Mapping[str, Sequence[TestResult]], cell: Cell) -> str:
    """Return for the line of a case whether the patch breaks or fixes it."""
    old = verdict_of(before.get(cell.case_id, ()))
    effect = _effect_on_test(old, cell.verdict)
    return f": the patch {effect} it" if effect in (PatchEffect.BREAKS, PatchEffect.FIXES) else ""
