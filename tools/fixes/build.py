"""Make an index grow by new commits and releases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from pytest_vllm_regress.answers.fixes.index import Fix, FixIndex

from .changes import fix_of, read_changes, terms_of
from .containment import Containment, sources_of
from .differences import differences


def grown(
    before: FixIndex,
    clone: Path,
    branch: str,
    releases: Iterable[tuple[str, Mapping[str, bytes]]],
) -> FixIndex:
    """Return the index with the commits of ``branch`` that it lacks, and with ``releases``: names
    and files, oldest first: the last one that it has, if it has any, and all later ones.

    Changes that no release contained so far are read again, since a new one may contain them.
    Releases that have all of the history have later changes, too: they are compared with the one
    before.
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
    until_date = changes[-1].date if changes else before.until_date
    differing = list(before.differences)
    previous: Mapping[str, bytes] = {}
    for name, files in releases:
        if name in names:
            containment.begin_after(sources_of(files))
        else:
            names.append(name)
            dates.append(containment.add(sources_of(files)) or (dates[-1] if dates else ""))
            if dates[-1] == until_date:
                differing += differences(previous, files, until_date, len(names) - 1)
        previous = files
    terms: Counter[str] = Counter()
    for change in changes:
        for side in terms_of(change):
            terms.update(side)
    fixes = [
        fix_of(change, terms, first)
        for change, first in zip(changes, containment.firsts, strict=True)
    ]
    until = changes[-1].commit if changes else before.until
    return FixIndex(until, until_date, names, dates, [*kept, *fixes], differing)


def _settled(index: FixIndex) -> tuple[list[Fix], str]:
    """Return the fixes that a release contains, and the commit before the first that none does."""
    waiting = [fix.first >= len(index.releases) for fix in index.fixes]
    if True not in waiting:
        return list(index.fixes), index.until
    first = waiting.index(True)
    kept = [fix for fix in index.fixes if fix.first < len(index.releases)]
    return kept, index.fixes[first - 1].commit if first else ""
