"""The table of verdicts: ``verdicts.json`` beside the cases, with the verdict of each case, release
and device that was run.

Written from result files by ``vllm-regress report --write``. Verdicts in the proofs of the cases
are part of the table, but not of the file.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Annotated, Literal

from packaging.version import Version

from ...cases.model import Case
from ...cases.proofs import proof
from ...cases.results import Cell, TestResult, group_into_cells
from ...cases.verdict import Verdict
from ...environments.names import resolve
from ...environments.recipes import parse_pin
from ...errors import Cause, UsageError
from ...util import codec
from ...util.codec import replace
from ...util.files import write_atomically
from ...util.versions import version_of

FILE = "verdicts.json"
MAX_BYTES = 16 * 1024 * 1024
_INSIDE = {Verdict.REGRESSED: Verdict.REPRODUCED, Verdict.FIXED: Verdict.UNEXPECTEDLY_FIXED}
_OUTSIDE = {inside: outside for outside, inside in _INSIDE.items()}


@dataclass(frozen=True)
class Recorded:
    """The verdict of a case in an environment on a device. ``date``: ISO 8601.

    ``code``: fingerprint of the test and the probe that were run. Empty if unknown; None for a
    verdict from a proof, which has its own fingerprint.
    ``cause``: what makes the case NOT_APPLICABLE; None if that is not known.
    """

    environment: str
    device: str
    verdict: Verdict
    date: str
    code: str | None = ""
    cause: Cause | None = None

    @property
    def is_clear(self) -> bool:
        """Whether there is nothing to find out by running the case again."""
        if self.verdict is Verdict.NOT_APPLICABLE:
            return self.cause is not None
        return self.verdict is not Verdict.INCONCLUSIVE

    @property
    def lacks_feature(self) -> bool:
        """Whether the release was found not to have the feature that fails."""
        return self.cause is Cause.RELEASE

    @property
    def shown(self) -> bool | None:
        """Whether the failure showed; None if the run did not tell."""
        return self.verdict.shown


_Place = Annotated[str, codec.Meta(pattern="^.+ [^ ]+$")]
"""Environment and device with a space between them."""
_Text = Annotated[
    str,
    codec.Meta(
        pattern=(
            rf"^({'|'.join(Verdict.__members__)}|NOT_APPLICABLE:({'|'.join(Cause)}))"
            r" \d{4}-\d\d-\d\d( [0-9a-f]{16})?$"
        ),
        extra_json_schema={
            "x-allowed": "'VERDICT YYYY-MM-DD FINGERPRINT', or NOT_APPLICABLE:CAUSE as verdict"
        },
    ),
]


class _File(codec.Document, frozen=True):
    schema: Literal[1]
    verdicts: dict[str, dict[_Place, _Text]]


class VerdictTable:
    """Verdicts by case.

    ``versions``: versions of packages that a proof recorded, by environment.
    """

    def __init__(
        self, rows: Mapping[str, Sequence[Recorded]], versions: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._rows = rows
        self._versions = versions
        # An environment has a row in most cases, and its recipe takes 0.3 ms.
        self._pins = functools.cache(_pins)
        self._of_environments = functools.cache(self._versions_of)

    def of_case(self, case_id: str) -> Sequence[Recorded]:
        """Return what was recorded of a case."""
        return self._rows.get(case_id, ())

    def with_results(self, results: Iterable[TestResult]) -> VerdictTable:
        """Return a table that also has these results."""
        results = tuple(results)
        rows = {case_id: list(recorded) for case_id, recorded in self._rows.items()}
        for cell in group_into_cells(results):
            rows.setdefault(cell.case_id, []).append(_recorded(cell))
        return VerdictTable(
            rows, {**{result.environment: result.versions for result in results}, **self._versions}
        )

    def at(self, case_id: str, package: str, version: str) -> list[Recorded]:
        """Return what was recorded of a case where ``package`` had this version."""
        versions = self._of_environments(package)
        return [e for e in self.of_case(case_id) if versions[e.environment] == version]

    def _versions_of(self, package: str) -> Mapping[str, str | None]:
        """Return each recorded environment's version of a package, None where it is unknown."""
        names = {entry.environment for recorded in self._rows.values() for entry in recorded}
        return {name: self.version(name, package) for name in names}

    def releases(self, package: str) -> tuple[Version, ...]:
        """Return the stable releases of ``package`` of which something was recorded, oldest first."""
        versions = {version_of(text or "") for text in self._of_environments(package).values()}
        return tuple(sorted(v for v in versions if v and not v.is_prerelease and v.local is None))

    def version(self, environment: str, package: str) -> str | None:
        """Return the version that an environment has of a package, where it is known."""
        recorded = self._versions.get(environment, {})
        return self._pins(environment).get(package) or recorded.get(package)


def read_table(cases: Sequence[Case]) -> VerdictTable:
    """Return the verdicts in the file beside the cases and in their proofs.

    Raises ``UsageError`` for an invalid file.
    """
    rows: dict[str, list[Recorded]] = {}
    versions: dict[str, Mapping[str, str]] = {}
    for case in cases:
        for entry in _proven(case):
            versions[entry.environment] = entry.versions
            rows.setdefault(case.id, []).append(
                Recorded(entry.environment, entry.device, entry.verdict, entry.date, code=None)
            )
    for directory in {case.directory.parent for case in cases}:
        for case_id, recorded in read_file(directory / FILE).items():
            rows.setdefault(case_id, []).extend(recorded)
    return VerdictTable(rows, versions)


def read_file(path: Path) -> dict[str, list[Recorded]]:
    """Return the verdicts in a file by case; none if there is no file.

    Raises ``UsageError`` for an invalid one.
    """
    if not path.exists():
        return {}
    document = codec.load(_File, path, MAX_BYTES, what="a table of verdicts")
    return {
        case_id: list(starmap(_parsed, row.items())) for case_id, row in document.verdicts.items()
    }


def record(directory: Path, cases: Sequence[Case], results: Iterable[TestResult]) -> int:
    """Add results to the directory's file, judged by the present ranges of the cases. Return the
    number of new and changed entries.

    An entry with the same verdict counts as changed, too, if another version of the test gave it.
    Left out are environments that only this machine has, verdicts that a proof has, and
    INCONCLUSIVE ones where a clear one is recorded.
    """
    by_id = {case.id: case for case in cases}
    rows = {
        case_id: {(entry.environment, entry.device): entry for entry in recorded}
        for case_id, recorded in read_file(directory / FILE).items()
    }
    proven = {
        (case.id, entry.environment, entry.device): entry.verdict
        for case in cases
        for entry in _proven(case)
    }
    judged = (_judged(by_id[r.case_id], r) for r in results if r.case_id in by_id)
    changed = 0
    for cell in group_into_cells(judged):
        key, row = (cell.environment, cell.device), rows.setdefault(cell.case_id, {})
        before = row.get(key)
        if (
            re.search("[@/]", cell.environment)
            or cell.device == "unknown"
            or (before and not _recorded(cell).is_clear)
            or proven.get((cell.case_id, *key)) is cell.verdict
        ):
            continue
        entry = row[key] = _recorded(cell)
        changed += before is None or dataclasses.replace(before, date=entry.date) != entry
    if changed:
        _write(directory / FILE, {case_id: row.values() for case_id, row in rows.items() if row})
    return changed


def _recorded(cell: Cell) -> Recorded:
    date = time.strftime("%Y-%m-%d", time.gmtime(max(result.started_at for result in cell.results)))
    code, *others = {result.code for result in cell.results}
    code = "" if others else code
    return Recorded(cell.environment, cell.device, cell.verdict, date, code, cell.cause)


def _judged(case: Case, result: TestResult) -> TestResult:
    """Return the result with the verdict that it has by the ranges of the case as they are now."""
    if result.variant is not None and result.variant not in case.variants:
        return result
    swap = _INSIDE if case.is_affected(result.versions, result.variant) else _OUTSIDE
    decides = not result.versions or case.can_show(result.versions, result.variant)
    return replace(result, verdict=swap.get(result.verdict, result.verdict), decides=decides)


def _write(path: Path, rows: Mapping[str, Iterable[Recorded]]) -> None:
    def order(entry: Recorded) -> tuple[Sequence[int], str]:  # older releases first
        return [*map(int, re.findall(r"\d+", entry.environment))], entry.device

    verdicts = {
        case_id: {
            f"{entry.environment} {entry.device}": (
                f"{entry.verdict.value}{f':{entry.cause}' if entry.cause else ''} "
                f"{entry.date} {entry.code}".rstrip()
            )
            for entry in sorted(recorded, key=order)
        }
        for case_id, recorded in sorted(rows.items())
    }
    content = json.dumps(verdicts, indent=2).replace("\n ", "\n")
    write_atomically(path, f'{{"schema": 1, "verdicts": {content}}}\n')


def _parsed(place: str, text: str) -> Recorded:
    environment, _, device = place.rpartition(" ")
    words, date, *code = text.split(" ")
    verdict, _, cause = words.partition(":")
    return Recorded(
        environment,
        device,
        Verdict(verdict),
        date,
        code[0] if code else "",
        Cause(cause) if cause else None,
    )


def _proven(case: Case) -> tuple[proof.EnvironmentEvidence, ...]:
    path = case.directory / proof.FILE
    return proof.read_proof(path).environments if path.exists() else ()


def _pins(environment: str) -> dict[str, str]:
    try:
        recipe = resolve(environment)
    except UsageError:
        return {}
    return dict(filter(None, map(parse_pin, (*recipe.requirements, *recipe.overrides))))
