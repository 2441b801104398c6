"""Which documented failures of its environment may a failed test of somebody else's suite show?

Those whose text stands in its report, as ``explain`` finds it. Otherwise, unless the release does
not have the route that the test asked for, those whose tests use a route that the report names: if
they show the same status, or if only few use that route.
"""

from __future__ import annotations

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
_ROUTE = re.compile(
    r"(?<![\w.])/(?:(?:v\d|inference/v\d)/[a-z_]+(?:/[a-z_]+)*|(?:de)?tokenize|score|rerank|pooling)\b"
)
_NOT_FOUND = re.compile(rf"({_ROUTE.pattern}): status 404\b")


@dataclass(frozen=True)
class Suspects:
    """``shown``: ids of documented failures whose text stands in the report; ``missing``: routes that
    the release does not have."""

    shown: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.missing and not self.shown:
            return ", ".join(self.missing)
        more = f" and {len(self.shown) - MAX_NAMED} more" if len(self.shown) > MAX_NAMED else ""
        return f"{', '.join(self.shown[:MAX_NAMED])}{more}"


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
        return Suspects(missing=tuple(self._missing_routes(report)))

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
