"""Which documented failures of its environment may a failed test of somebody else's suite show?

Those whose text stands in its report, as ``explain`` finds it. Otherwise, unless the release does
not have the route that the test asked for, those whose tests use a route that the report names: if
they show the same status, or if only few use that route.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from ...cases.model import Case
from ...environments.installed import VLLM
from ...environments.sources import names_interpreter
from ...errors import UsageError
from ...util.files import expand_home
from ...util.versions import version_of
from ..api_history.store import history, intervals
from ..audit.audit import audit
from ..audit.features import release_number
from ..audit.target import read_interpreter, read_side
from . import log
from .explanation import Certainty

MAX_NAMED = 3
"""Ids that are named where there is little room."""
MAX_SAME_ROUTE = 8
"""Cases that may have only the route in common with a report: more say nothing about it."""
_MAX_SOURCE = 256 * 1024
_ROUTE = re.compile(
    r"(?<![\w.])/(?:(?:v\d|inference/v\d)/[a-z_]+(?:/[a-z_]+)*|(?:de)?tokenize|score|rerank|pooling)\b"
)
_NOT_FOUND = re.compile(rf"({_ROUTE.pattern}): status 404\b")
_STATUS = re.compile(r"(?:status(?:[ _]code)?|Error code|HTTP/1\.1\"?)\W{1,4}([45]\d\d)\b", re.I)


@dataclass(frozen=True)
class Suspects:
    """Ids of documented failures. ``shown``: their text stands in the report; ``perhaps``: they
    only concern the same route. ``missing``: routes that the release does not have."""

    shown: tuple[str, ...] = ()
    perhaps: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.missing and not self.shown:
            return ", ".join(self.missing)
        ids = self.shown or self.perhaps
        more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
        return (
            f"{'' if self.shown else 'perhaps '}{', '.join(ids[:MAX_NAMED])}{more}" if ids else ""
        )


@dataclass(frozen=True)
class KnownFailures:
    """The documented failures of an environment, and the versions in it that decide."""

    cases: tuple[Case, ...]
    versions: Mapping[str, str]

    @classmethod
    def of(cls, environment: str, cases: Sequence[Case]) -> KnownFailures:
        """Audit an environment, by name or interpreter. One of which nothing is known has none."""
        try:
            inventory = (
                read_interpreter(expand_home(environment), cases)
                if names_interpreter(environment)
                else read_side(environment)
            )
        except UsageError:
            return cls((), {})
        result = audit(inventory, cases, None, ())
        return cls(tuple(finding.case for finding in result.findings), result.versions)

    def suspects(self, report: str) -> Suspects:
        """Return which of them the report of a failed test may show."""
        about = "\n".join(f"vllm {self.versions[name]}" for name in VLLM if name in self.versions)
        stream = io.BytesIO(report.encode("utf-8", "replace"))
        findings = log.explain(stream, self.cases, "a test", about).findings
        shown = [f.case.id for f in findings if f.certainty is not Certainty.OUTSIDE]
        if shown:
            return Suspects(tuple(shown))
        missing = tuple(self._missing_routes(report))
        return Suspects(perhaps=() if missing else self._on_route(report), missing=missing)

    def _missing_routes(self, report: str) -> Iterator[str]:
        """Yield which routes with status 404 the release does not have, and which one has."""
        release = next(
            (v for v in (version_of(self.versions.get(name, "")) for name in VLLM) if v), None
        )
        api = history()
        number = None if release is None else release_number(api, Version(release.public))
        for route in dict.fromkeys(_NOT_FOUND.findall(report)):
            timeline = api.table("routes").get(route)
            if number is None or timeline is None or api.entry("routes", route, number):
                continue
            since = [first for first, _, _ in intervals(timeline, len(api.releases))]
            later = [api.releases[first] for first in since if first > number]
            yield f"{route} exists since {later[0]}" if later else f"{route} was removed before"

    def _on_route(self, report: str) -> tuple[str, ...]:
        routes, statuses = set(_ROUTE.findall(report)), set(_STATUS.findall(report))
        same = [case for case in self.cases if not routes.isdisjoint(routes_of(case))]
        alike = [case for case in same if not statuses.isdisjoint(_statuses_of(case))]
        refused = any(status.startswith("4") for status in statuses)
        chosen = alike or ([] if refused else same)  # most requests are refused for good reasons
        return tuple(case.id for case in chosen) if len(chosen) <= MAX_SAME_ROUTE else ()


@functools.lru_cache(maxsize=1024)
def routes_of(case: Case) -> frozenset[str]:
    """Return the routes that the tests and probes of a case name."""
    texts = (
        path.read_text(encoding="utf-8", errors="replace")[:_MAX_SOURCE]
        for path in case.directory.glob("*.py")
    )
    return frozenset(route for text in texts for route in _ROUTE.findall(text))


def _statuses_of(case: Case) -> list[str]:
    return _STATUS.findall(f"{case.title}\n{case.symptom.pattern}")
