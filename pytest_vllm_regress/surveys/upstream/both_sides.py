"""Upstream's own tests of the modules that a patch changes, on its base and with it: which of them
does it break?

The files are those of the base. Its results are kept for the next patch.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...cases.proofs.proof import lock_id
from ...engines.standalone import bare_session
from ...environments.git import Commit
from ...environments.names import resolve
from ...history.patch import PatchComparison
from ...runner.batch import digest
from ...util.paths import writable_root
from ...util.report import Section
from ...util.rundir import scratch
from ...util.store import Store
from .tests import (
    RunLimits,
    UpstreamOutcome,
    UpstreamRequest,
    UpstreamResult,
    listed_tests,
    run_tests,
)
from .tree import TestTree, write_tree

MAX_FILES = 6
"""Test files that are run: more take longer than somebody waits."""
RUN_MINUTES = 15
LIMITS = RunLimits(test_s=120.0, run_s=60.0 * RUN_MINUTES)
_MAX_SHOWN = 3
_MAX_TOGETHER = 30
"""Files of a commit. A commit of more, such as one for a formatter, says nothing about them."""


@dataclass(frozen=True)
class UpstreamComparison:
    """The results of the same tests on both sides, by test. ``not_executed``: changed functions that
    none of them executed with the patch."""

    files: tuple[str, ...]
    before: Mapping[str, UpstreamResult]
    after: Mapping[str, UpstreamResult]
    not_executed: tuple[str, ...]

    def broken(self, file: str = "") -> list[UpstreamResult]:
        """Return the tests of a file (or of all) that pass at the base and fail with the patch."""
        return [
            result
            for test, result in self.after.items()
            if result.outcome is UpstreamOutcome.FAILED
            and test in self.before
            and self.before[test].outcome is UpstreamOutcome.PASSED
            and file in ("", result.file)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--format json``."""
        return {
            "files": self.files,
            "breaks": [result.test for result in self.broken()],
            "before": tuple(self.before.values()),
            "after": tuple(self.after.values()),
        }

    def section(self) -> Section:
        """Return a line for each file, and the first tests that broke with their reasons."""
        lines = tuple(line for file in self.files for line in self._lines(file))
        return Section("Upstream's own tests, those of the base", [lines] if lines else [_NONE])

    def _lines(self, file: str) -> Iterator[str]:
        results = [result for result in self.before.values() if result.file == file]
        passed = sum(result.outcome is UpstreamOutcome.PASSED for result in results)
        broken = self.broken(file)
        missing = sum(result.test not in self.after for result in results)
        cut = f", {missing} had no result with the patch" if missing else ""
        yield f"breaks {len(broken) or 'none'} of {passed} in {file}{cut}"
        for result in broken[:_MAX_SHOWN]:
            yield f"{result.test}: {result.reason}"


_NONE = "No test file imports a changed module, or was changed together with one."


def compare_upstream(
    comparison: PatchComparison, say: Callable[[str], None], *, base_again: bool = False
) -> UpstreamComparison:
    """Run upstream's tests of the changed modules on both sides, on the simulated device.

    ``base_again``: also if the results of the base are known.
    """
    repository = comparison.source.repository
    with bare_session(say, device="sim") as session, scratch() as folder:
        (folder / "tree").mkdir()
        release = resolve(comparison.base_environment).target[1]
        base = comparison.base.id
        tree = write_tree(repository, base, folder / "tree", release=release, say=say)
        history = repository.commits_touching(sorted(comparison.changed), base)
        files = files_about(comparison.changed, tree, history)
        say(f"upstream's tests: {', '.join(files) or 'none'}")

        def run(name: str, key: str) -> tuple[dict[str, UpstreamResult], bool]:
            """Return the results, and whether no test is missing."""
            target, record = session.target(name), _kept(comparison, "begun", key, *files)
            record.parent.mkdir(parents=True, exist_ok=True)
            say(f"running upstream's tests in {name}, for at most {RUN_MINUTES} min")
            request = UpstreamRequest(
                tree, files, target, folder / "dossiers", limits=LIMITS, listed=listed_tests(files)
            )
            ran = run_tests(request, folder / "pytest.log", say, record=record)
            if ran.ended:
                record.unlink(missing_ok=True)
            else:
                say(f"{name}: not all tests of upstream's were run in {ran.seconds:.0f} s")
            return {result.test: result for result in ran.results}, ran.ended

        before: Mapping[str, UpstreamResult] = {}
        after: Mapping[str, UpstreamResult] = {}
        ended = True
        if files:
            path = _kept(comparison, "upstream", comparison.before, *files)
            kept = Store(path, UpstreamResult, what="upstream's tests on a base", fresh=base_again)
            before = dict(kept.entries)
            if not before:
                before, ended = run(comparison.before, comparison.before)
                if ended:
                    kept.rewrite(before)
        executed = _kept(comparison, "executed", comparison.source.key, *files)
        with comparison.functions.recorded(executed):
            if files:
                after, ended = run(comparison.after, comparison.source.key)
        not_executed = comparison.functions.not_executed(executed)
        if ended:
            shutil.rmtree(executed)
    return UpstreamComparison(files, before, after, not_executed)


def _kept(comparison: PatchComparison, kind: str, *key: str) -> Path:
    """Return the file in the cache with results of ``kind`` over the base environment."""
    below = comparison.base_environment
    name = digest(below, lock_id(below), __version__, *key)
    return Path(writable_root(), "try-bases", f"{kind}-{name}")


def files_about(
    changed: frozenset[str], tree: TestTree, history: Iterable[Commit]
) -> tuple[str, ...]:
    """Return the test files that import the changed modules most, then those that were changed in
    the same commits. ``history``: the commits that touched a changed module."""
    patterns = [_import_of(path) for path in changed if path.endswith(".py")]
    named = re.compile("|".join(filter(None, patterns)) or r"(?!)")
    together: Counter[str] = Counter()
    for commit in history:
        if len(commit.touched) <= _MAX_TOGETHER:
            together.update(commit.touched)
    ranks = {}
    for path in sorted((tree.root / "tests").rglob("test_*.py")):
        file = path.relative_to(tree.root).as_posix()
        text = path.read_text(encoding="utf-8", errors="replace")
        imports = len(set(named.findall(text)))
        if imports or together[file]:
            ranks[file] = (imports, together[file])
    return tuple(sorted(ranks, key=lambda file: ranks[file], reverse=True)[:MAX_FILES])


def _import_of(path: str) -> str:
    """Return a pattern for the use of a module; empty for the whole package, which every test uses.

    It begins with letters, which are searched for thirty times faster than with a boundary before.
    """
    module = path.removesuffix(".py").replace("/", r"\.")
    package = module.removesuffix(r"\.__init__")
    if package == module:
        return rf"{module}\b"
    return rf"{package}\s+import\b" if r"\." in package else ""
