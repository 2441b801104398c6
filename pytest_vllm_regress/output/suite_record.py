"""Recorded results of a user's own suite, and what fails now that did not fail then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from ..errors import UsageError
from ..runner.suite import EnvironmentRun, TestOutcome
from ..util import codec
from ..util.documents import load_json
from ..util.versions import version_of

_MAX_BYTES = 1024 * 1024 * 1024
_FITS = (TestOutcome.PASSED, TestOutcome.SKIPPED)


@dataclass(frozen=True)
class RecordedTest:
    """Outcome of a test. What else the results say of it is ignored."""

    outcome: TestOutcome


@dataclass(frozen=True)
class RecordedRun:
    """A suite in one environment."""

    environment: str
    tests: Mapping[str, RecordedTest] = field(default_factory=dict)
    version: str = ""

    @property
    def order(self) -> Version:
        return version_of(self.version) or Version("0")


@dataclass(frozen=True)
class SuiteRecord:
    """What the results of a suite say, as JSON of ``--out`` has them."""

    runs: list[RecordedRun]

    @classmethod
    def read(cls, path: Path) -> SuiteRecord:
        """Raises ``UsageError`` if the file has no results of a suite."""
        if not path.exists():
            raise UsageError(f"--base {path}: no such file; give a file that --out wrote, or last")
        return codec.decode(cls, load_json(path, _MAX_BYTES), path)

    def before(self, environment: str, version: str) -> RecordedRun | None:
        """Return the run to compare a new one with: of the same environment, else of the newest
        older release."""
        runs = [run for run in self.runs if run.tests]
        same = [run for run in runs if run.environment == environment]
        older = [run for run in runs if run.order < (version_of(version) or Version("0"))]
        return same[0] if same else max(older, key=lambda run: run.order, default=None)


def newly_failing(run: EnvironmentRun, before: RecordedRun) -> list[tuple[str, str]]:
    """Return the tests that fail and did not fail in ``before``, each with what it did there."""
    fails = [name for name, test in run.tests.items() if not test.fits]
    then = {name: before.tests[name].outcome for name in fails if name in before.tests}
    return [
        (name, then[name].value if name in then else "no such test")
        for name in fails
        if then.get(name, TestOutcome.PASSED) in _FITS
    ]
