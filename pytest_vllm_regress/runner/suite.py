"""A user's own test suite in several environments: one pytest for each, started as the user would
start it, with the plugin pointed at the environment.

The plugin writes what became of each test (``plugin/suite_report.py``); a test that is collected
and has no result was not run.
"""

from __future__ import annotations

import enum
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from ..util.codec import Document
from ..util.store import Store

_VALUED = frozenset(["-c", "-k", "-m", "-n", "-o", "-p", "-r", "-W"])
"""Short options of pytest with a value."""
_OURS = ("--vllm-env", "--vllm-device")


class TestOutcome(enum.StrEnum):
    """What became of a test. Expected failures count as skipped, as in pytest's JUnit."""

    __test__ = False  # not a pytest class

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERROR = "error"
    NOT_RUN = "not run"


class SuiteTest(Document, frozen=True):
    """Outcome of one test in one environment. ``text``: why it failed or was skipped, and its output."""

    outcome: TestOutcome
    seconds: float = 0.0
    text: str = ""

    @property
    def fits(self) -> bool:
        """Whether it passed, or was skipped."""
        return self.outcome in (TestOutcome.PASSED, TestOutcome.SKIPPED)


@dataclass(frozen=True)
class EnvironmentRun:
    """A suite in one environment. ``problems``: what pytest or the build reported beside tests."""

    environment: str
    tests: Mapping[str, SuiteTest] = field(default_factory=dict, hash=False)
    problems: tuple[str, ...] = ()
    unbuilt: bool = False

    @property
    def works(self) -> bool:
        """Whether something passed, and nothing failed."""
        tests = self.tests.values()
        passed = any(test.outcome is TestOutcome.PASSED for test in tests)
        return passed and not self.problems and all(test.fits for test in tests)

    def count(self, outcome: TestOutcome) -> int:
        """Return how many tests ended so."""
        return sum(test.outcome == outcome for test in self.tests.values())


@dataclass(frozen=True)
class SuiteOutcome:
    """The runs of a suite, in the order of the environments."""

    runs: tuple[EnvironmentRun, ...]
    interrupted: bool = False

    @property
    def tests(self) -> tuple[str, ...]:
        """The ids of all tests, in the order in which they were collected."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.tests))

    @property
    def exit_code(self) -> int:
        """As ``RunOutcome.exit_code``: 0 only if everything passed in every environment."""
        if self.interrupted:
            return 130
        if any(run.unbuilt for run in self.runs):
            return 3
        return 0 if all(run.works for run in self.runs) else 1


def suite_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a user's own suite, if the arguments are one (``pytest tests/`` or
    ``python -m pytest tests/``); empty if they are options for the pytest that runs cases.

    Raises ``UsageError`` for options that choose the environment.
    """
    words = list(arguments)
    if words and Path(words[0]).name in ("pytest", "py.test"):
        # The one beside this interpreter has our plugin, whatever PATH says.
        own = Path(sys.executable).parent / words[0]
        head, tail = [str(own) if own.exists() else words[0]], words[1:]
    elif words[1:3] == ["-m", "pytest"]:
        ours = words[0] in ("python", "python3")
        head, tail = [sys.executable if ours else words[0], "-m", "pytest"], words[3:]
    else:
        return ()
    if named := [word for word in tail if word.startswith(_OURS)]:
        raise UsageError(f"{named[0]}: leave it out; --env, --releases and --device say that")
    if shutil.which(head[0]) is None:
        raise UsageError(f"{words[0]}: no such program")
    return (*head, *tail)


def refuse_paths(arguments: Sequence[str]) -> None:
    """Raise ``UsageError`` if the arguments for the pytest that runs cases name tests."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        takes_value = before.startswith("--") and "=" not in before
        if word.startswith("-") or takes_value or before in _VALUED:
            continue
        raise UsageError(
            f"{word}: cases are run, and no other tests. After -- options for pytest are allowed; "
            f"your own suite is run by `vllm-regress matrix --releases SPEC -- pytest {word}`"
        )


def suite_report(path: Path) -> Store[SuiteTest]:
    """Return the file in which the plugin writes what became of each test, by its id."""
    return Store(path, SuiteTest, what="the tests of a suite")


def read_suite_report(path: Path) -> Mapping[str, SuiteTest]:
    """Return what became of each test, by its id; nothing if the plugin wrote nothing."""
    return suite_report(path).entries
