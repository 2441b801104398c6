"""What was recorded of a failure with the packages of an inventory, for ``audit`` and ``compare``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.version import Version

from ...cases.model import Case
from ...environments.installed import VLLM
from ...util.versions import version_of
from .matching import AuditMatch, Inventory, unknown_packages
from .verdict_table import Recorded, VerdictTable


def recorded(inventory: Inventory, case: Case, table: VerdictTable) -> list[Recorded]:
    """Return what was recorded about the only package that decides, in its only version.

    For a release of vLLM of which no lock is known, that is a result with the packages of the day
    after the release.
    """
    package = case.affected[0].package
    names = VLLM if package == "vllm" else (package,)
    name = next((name for name in names if name in inventory.versions), package)
    versions = inventory.versions.get(name, ())
    if inventory.release and unknown_packages(inventory, case):
        # Without overlays such as +transformers==5.23.0.
        plain = f"vllm-{Version(inventory.release).public}"
        return [entry for entry in table.of_case(case.id) if entry.environment == plain]
    if len(case.affected) == len(versions) == 1 and (version := version_of(versions[0])):
        return table.at(case.id, name, version.public)
    return []


def latest(entries: Iterable[Recorded]) -> Recorded | None:
    """Return the last result that tells something."""
    telling = [entry for entry in entries if entry.shown is not None]
    return max(telling, key=lambda entry: entry.date, default=None)


def words_of(entry: Recorded) -> str:
    """Return what was recorded, and where."""
    state = "observed" if entry.shown else "passed"
    return f"{state} in {entry.environment} ({entry.device}, {entry.date})"


def of_unknown_packages(
    inventory: Inventory, cases: Iterable[Case], table: VerdictTable
) -> Iterator[tuple[Case, AuditMatch | None]]:
    """Yield the cases about packages whose versions a release does not tell, but of which a run
    with the release's own packages was recorded, and the failure if that run showed it."""
    for case in cases:
        unknown = unknown_packages(inventory, case)
        entry = latest(recorded(inventory, case, table)) if inventory.release and unknown else None
        if entry is None:
            continue
        package = next(p for p in inventory.packages if p.name in VLLM)
        reason = f"affected: {words_of(entry)}"
        versions = {package.name: package.version}
        match = AuditMatch(case, versions, reason, (), package, observed=words_of(entry))
        yield case, match if entry.shown else None
