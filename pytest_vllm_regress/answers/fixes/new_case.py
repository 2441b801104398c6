"""What the record of a fix says about the case that is to document its failure."""

from __future__ import annotations

import re
from dataclasses import replace

from ...cases.scaffold import DEFAULT_REPOSITORY, Draft, GitHubReport
from ...environments.names import unavailable_reason
from .index import Fix, FixIndex

_TAGS = re.compile(r"^(?:\[[^\]]*\]\s*)+:?\s*")


def draft_of_fix(index: FixIndex, fix: Fix, draft: Draft) -> Draft:
    """Return a draft with the empty fields filled from the record of a fix: title, range, the
    releases on both sides of its end as environments, and what the README says about the fix.

    A range that the user gives may end elsewhere, so that its environments have to be named too.
    """
    release = index.first_release(fix)
    ends: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
    is_open = draft.affected == Draft.affected
    if release and fix.first and is_open:
        sides = f"vllm-{index.releases[fix.first - 1]}", f"vllm-{release}"
        if not any(unavailable_reason(name, ask=False) for name in sides):
            ends = sides[:1], sides[1:]
    address = GitHubReport(DEFAULT_REPOSITORY, fix.number, "pull").url
    return replace(
        draft,
        title=draft.title or _TAGS.sub("", fix.title),
        affected=f"<{release}" if release and is_open else draft.affected,
        affected_env=draft.affected_env or ends[0],
        fixed_env=draft.fixed_env or ends[1],
        fixed_by=draft.fixed_by or (address,),
        fix=_described(fix, release),
    )


def _described(fix: Fix, release: str | None) -> str:
    """Return what a fix changed and how upstream tests it, in Markdown. Nothing is copied."""
    changes = ", ".join(
        f"`{file}`" + (f" ({', '.join(f'`{name}`' for name in names)})" if names else "")
        for file, names in zip(fix.files, fix.changed.values(), strict=True)
    )
    where = f"first in {release}" if release else "in no release yet"
    said = f"{fix.name} of {fix.date} (commit {fix.commit}), {where}. It changes {changes}."
    tests = ", ".join(f"`{test}`" for test in fix.tests)
    return f"{said} Upstream's own tests of it: {tests}." if tests else said
