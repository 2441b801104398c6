"""Make an index grow by new commits and releases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from pytest_vllm_regress.answers.fixes.index import Fix, FixIndex

from .changes import fix_of, read_changes, terms_of
from .containment import Containment, sources_of


def grown(
    before: FixIndex,
    clone: Path,
    branch: str,
    releases: Iterable[tuple[str, Mapping[str, bytes]]],
) -> FixIndex:
    """Return the index with the commits of ``branch`` that it lacks, and with ``releases``: names
    and files, oldest first, all later than those that it has.

    Changes that no release contained so far are read again, since a new one may contain them.
    """
    count = len(before.releases)
    kept, after = _settled(before)
    numbers = {fix.number for fix in kept}
    changes = [
        change
        for change in read_changes(clone, branch, after)
        if change.counts and change.number not in numbers
    ]
    containment = Containment(changes, count)
    names, dates = list(before.releases), list(before.dates)
    for name, files in releases:
        names.append(name)
        dates.append(containment.add(sources_of(files)) or (dates[-1] if dates else ""))
    terms: Counter[str] = Counter()
    for change in changes:
        for side in terms_of(change):
            terms.update(side)
    fixes = [
        fix_of(change, terms, first)
        for change, first in zip(changes, containment.firsts, strict=True)
    ]
    last = changes[-1] if changes else None
    return FixIndex(
        last.commit if last else before.until,
        last.date if last else before.until_date,
        names,
        dates,
        [*kept, *fixes],
    )


def _settled(index: FixIndex) -> tuple[list[Fix], str]:
    """Return the fixes that a release contains, and the commit before the first that none does."""
    waiting = [fix.first >= len(index.releases) for fix in index.fixes]
    if True not in waiting:
        return list(index.fixes), index.until
    first = waiting.index(True)
    kept = [fix for fix in index.fixes if fix.first < len(index.releases)]
    return kept, index.fixes[first - 1].commit if first else ""
