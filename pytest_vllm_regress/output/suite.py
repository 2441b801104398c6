"""A user's own suite on several releases: test by release, with the documented failures beside the
tests that fail; as text, Markdown, page, JUnit and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from ..answers.explain.known_failures import KnownFailures, Suspects
from ..cases.model import Case
from ..environments.installed import VLLM
from ..environments.releases import known_releases
from ..runner.suite import EnvironmentRun, SuiteOutcome, SuiteTest, TestOutcome
from ..util import codec
from ..util.files import write_atomically
from ..util.report import Report, Section, Table, to_markdown
from ..util.text import printable, render_text
from ..util.versions import version_of
from .formats import DOCUMENTS, OutputFiles
from .suite_record import SuiteRecord, newly_failing

FILE = "suite.json"
"""The name of the results in a folder."""
_MAX_REASON = 300


@dataclass(frozen=True)
class SuiteResults:
    """The outcome of a suite, and the documented failures that its tests may show.

    ``suspects``: by environment and test. ``versions``: of vLLM, by environment. ``base``: earlier
    results, with which these are compared.
    """

    outcome: SuiteOutcome
    command: tuple[str, ...]
    suspects: Mapping[tuple[str, str], Suspects]
    versions: Mapping[str, str]
    base: SuiteRecord | None = None

    @property
    def exit_code(self) -> int:
        """As that of the outcome; compared with earlier results, only what fails newly counts."""
        code = self.outcome.exit_code
        if code != 1 or self.base is None:
            return code
        return int(bool(self.broken) or any(run.problems for run in self.outcome.runs))

    @property
    def broken(self) -> list[tuple[str, str, str]]:
        """Test, environment and what the test did before, of each that fails newly."""
        rows: list[tuple[str, str, str]] = []
        if self.base is None:
            return rows
        for run in self.outcome.runs:
            before = self.base.before(run.environment, self.versions.get(run.environment, ""))
            name, failing = (
                ("", [(name, "") for name, test in run.tests.items() if not test.fits])
                if before is None
                else (before.environment, newly_failing(run, before))
            )
            rows += [
                (test, run.environment, f"{then} in {name}" if name else "not recorded")
                for test, then in failing
            ]
        return rows

    @property
    def badge(self) -> str:
        """In one line, with which releases the suite works."""
        runs = self.outcome.runs
        works = [run for run in runs if run.works]
        if not works:
            return "works with none of the tested releases of vLLM"
        versions = [self.versions.get(run.environment, "") for run in works]
        return f"works with vLLM {_spans(versions)}"

    def cell(self, run: EnvironmentRun, name: str) -> str:
        """Return what became of a test in a run, in words."""
        test = run.tests.get(name)
        if test is None:
            return TestOutcome.NOT_RUN.value
        suspects = str(self.suspects.get((run.environment, name), ""))
        return f"{test.outcome.value}: {suspects}" if suspects else test.outcome.value

    def report(self, *, everything: bool = True) -> Report:
        """Return the tables. ``everything``: also tests that failed nowhere."""
        outcome = self.outcome
        counts = [
            (run.environment, *(str(run.count(o)) for o in TestOutcome), _yes(run.works))
            for run in outcome.runs
        ]
        rows = [
            (name, *(self.cell(run, name) for run in outcome.runs))
            for name in outcome.tests
            if everything or not all(_fits(run.tests.get(name)) for run in outcome.runs)
        ]
        parts: list[Table | tuple[str, ...]] = [
            Table(("environment", *(o.value for o in TestOutcome), "works"), counts)
        ]
        if rows:
            parts.append(Table(("test", *(run.environment for run in outcome.runs)), rows))
        if why := self._reasons():
            parts.append(tuple(why))
        problems = [f"Problem: {problem}" for run in outcome.runs for problem in run.problems]
        sections = [Section(parts=parts)]
        if broken := self.broken:
            table = Table(("fails newly", "environment", "before"), broken)
            sections.append(Section(parts=[table]))
        elif self.base is not None:
            problems.append("Nothing fails that did not fail before.")
        return Report(sections=sections, notes=[*problems, self.badge])

    def _reasons(self) -> list[str]:
        """Return a line for each test and reason to fail, with its environments."""
        places: dict[tuple[str, str], list[str]] = {}
        for run in self.outcome.runs:
            for name, test in run.tests.items():
                if not test.fits and test.text:
                    places.setdefault((name, _first_line(test.text)), []).append(run.environment)
        return [f"{name} ({', '.join(where)}): {why}" for (name, why), where in places.items()]

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain values; ``badge`` is what shields.io reads."""
        works = any(run.works for run in self.outcome.runs)
        return {
            "schema": 1,
            "suite": self.command,
            "badge": {
                "schemaVersion": 1,
                "label": "tests",
                "message": self.badge,
                "color": "brightgreen" if works else "red",
            },
            "interrupted": self.outcome.interrupted,
            "broken": [
                dict(zip(("test", "environment", "before"), b, strict=True)) for b in self.broken
            ],
            "runs": [
                {
                    "environment": run.environment,
                    "version": self.versions.get(run.environment, ""),
                    "works": run.works,
                    "problems": run.problems,
                    "tests": {name: self._test(run, name, run.tests[name]) for name in run.tests},
                }
                for run in self.outcome.runs
            ],
        }

    def _test(self, run: EnvironmentRun, name: str, test: SuiteTest) -> dict[str, Any]:
        suspects = self.suspects.get((run.environment, name))
        return {**codec.encode(test), **({"documented": suspects} if suspects else {})}


def with_known_failures(
    outcome: SuiteOutcome, command: tuple[str, ...], cases: Sequence[Case]
) -> SuiteResults:
    """Return the results with the documented failures of each environment beside the tests that
    failed there."""
    suspects: dict[tuple[str, str], Suspects] = {}
    versions: dict[str, str] = {}
    for run in outcome.runs:
        known = KnownFailures.of(run.environment, cases)
        versions[run.environment] = next(
            (known.versions[name] for name in VLLM if name in known.versions), ""
        )
        for name, test in run.tests.items():
            if not test.fits and test.text:
                found = known.suspects(test.text)
                suspects |= {(run.environment, name): found} if str(found) else {}
    return SuiteResults(outcome, command, suspects, versions)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _fits(test: SuiteTest | None) -> bool:
    return test is not None and test.fits


def rendered_suite(format: str, results: SuiteResults) -> str:
    """Return the results as ``html``, ``markdown``, ``junit`` or ``json``."""
    if format == "markdown":
        return to_markdown(results.report())
    if format == "html":
        from .pages.documents import page_of_markdown

        return page_of_markdown("Test by release", to_markdown(results.report()))
    if format == "junit":
        return render_text(
            "suite.xml.txt",
            runs=results.outcome.runs,
            names=results.outcome.tests,
            cell=results.cell,
            reason=_first_line,
            printable=printable,
        )
    return codec.to_text(results.to_json())


def save_suite(results: SuiteResults, files: OutputFiles, say: Callable[[str], None]) -> None:
    """Write what ``--out`` names."""
    if (place := files.results) is not None:
        if place.suffix != ".json":
            place.mkdir(parents=True, exist_ok=True)
            place = place / FILE
        write_atomically(place, rendered_suite("json", results))
        say(f"results: {place}")
    for path in files.documents:
        format, name = DOCUMENTS[path.suffix]
        write_atomically(path, rendered_suite(format, results))
        say(f"{name}: {path}")


def _first_line(text: str) -> str:
    """Return the line that says why: of pytest's report the first one that it marks."""
    lines = text.strip().splitlines() or [""]
    marked = [line[2:].strip() for line in lines if line.startswith("E ")]
    return (marked or lines)[0][:_MAX_REASON]


def _spans(versions: Sequence[str]) -> str:
    """Return releases in words. Two are joined by "to" if no minor release is between them."""
    tested = sorted({version for version in map(version_of, versions) if version is not None})
    minors = sorted({version.release[:2] for version in (*known_releases("vllm"), *tested)})
    spans: list[list[Version]] = []
    for version in tested:
        place = minors.index(version.release[:2])
        if spans and place - minors.index(spans[-1][-1].release[:2]) <= 1:
            spans[-1].append(version)
        else:
            spans.append([version])
    ends = (dict.fromkeys(map(_short, (span[0], span[-1]))) for span in spans)
    return ", ".join(map(" to ".join, ends)) or "of an unknown version"


def _short(version: Version) -> str:
    return version.public.removesuffix(".0") if len(version.release) > 2 else version.public
