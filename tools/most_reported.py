"""The page of the failures that people report most, and what is known about each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_vllm_regress.util.codec import Document, load
from pytest_vllm_regress.util.report import Markup, Table

from . import page as pages

RECORD = Path(__file__).parents[1] / "docs" / "records" / "most-reported.toml"
HEADER = ("failure", "kind", "reports", "comments", "reactions", "in the sample", "status")
KINDS = {
    "cases": "proven here",
    "diagnoses": "diagnosis",
    "fix": "known fix",
    "needs": "only a GPU or real weights can show it",
    "unknown": "unknown",
}
"""What each status is called, by the field of `ReportedFailure` that has it."""


class ReportedFailure(Document, frozen=True):
    """A failure and one status. ``comments`` and ``reactions`` are those of the reports, as far as
    they are stored; ``sample`` counts drawn reports with this root cause."""

    what: str
    kind: str
    reports: Sequence[str]
    comments: int = 0
    reactions: int = 0
    sample: int = 0
    cases: Sequence[str] = ()
    diagnoses: Sequence[str] = ()
    fix: str = ""
    needs: str = ""
    unknown: bool = False

    @property
    def status(self) -> str:
        """The name of the one field of ``KINDS`` that is set."""
        (status,) = (name for name in KINDS if getattr(self, name))
        return status


class MostReported(Document, frozen=True):
    """The record: the failures, and the size of the sample that they were counted in."""

    sample: int
    failure: Sequence[ReportedFailure]


def read_record() -> MostReported:
    """Return the record."""
    return load(MostReported, RECORD, 1_000_000, what="record of reported failures")


def _link(reference: str) -> str:
    project, _, number = reference.rpartition("#")
    repository = "vllm-project/vllm" if project == "vllm" else project
    return f"[{reference}](https://github.com/{repository}/issues/{number})"


def _status(failure: ReportedFailure) -> str:
    if failure.cases:
        return ", ".join(f"[{name}](../../cases/{name}/README.md)" for name in failure.cases)
    if failure.diagnoses:
        return "diagnosis: " + ", ".join(failure.diagnoses)
    if failure.fix:
        return f"known fix: {_link(failure.fix)}"
    return f"cannot be shown here: {failure.needs}" if failure.needs else "unknown"


def row(failure: ReportedFailure) -> Sequence[str]:
    """Return the cells of a failure."""
    numbers = (failure.comments, failure.reactions, failure.sample)
    return (
        failure.what,
        failure.kind,
        Markup(", ".join(map(_link, failure.reports))),
        *(str(number or "") for number in numbers),
        Markup(_status(failure)),
    )


def shares(record: MostReported) -> Table:
    """Return how many of the failures, and of the drawn reports, have each status."""
    count, sampled = Counter[str](), Counter[str]()
    for failure in record.failure:
        count[failure.status] += 1
        sampled[failure.status] += failure.sample
    rows = [
        (
            name,
            str(count[key]),
            _share(count[key], count.total()),
            _share(sampled[key], record.sample),
        )
        for key, name in KINDS.items()
    ]
    rest = record.sample - sampled.total()
    rows.append(("another failure", "", Markup(), _share(rest, record.sample)))
    return Table(("status", "failures", "share", "share of the drawn reports"), rows)


def _share(part: int, whole: int) -> Markup:
    return Markup(f"{part / whole:.0%}")


def text() -> str:
    """Return the page."""
    record = read_record()
    ordered = sorted(record.failure, key=_weight, reverse=True)
    return pages.render(
        "most-reported",
        failures=Table(HEADER, [row(failure) for failure in ordered]),
        shares=shares(record),
        sample=record.sample,
        sampled=sum(failure.sample for failure in record.failure),
    )


def _weight(failure: ReportedFailure) -> int:
    return len(failure.reports) + failure.comments + failure.reactions + failure.sample
