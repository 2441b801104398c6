"""The page of fixing and breaking commits, from the evidence of the cases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.proofs.proof import BisectedCommit, recorded_proof
from pytest_vllm_regress.environments.sources import PROJECTS
from pytest_vllm_regress.util.report import Markup, Table

from . import page as pages

ROOT = Path(__file__).parents[1]
DOCUMENTED = 2
"""Number of candidates if no search was needed: the documented commit and its parent."""
HEADER = ("case", "change", "commit", "pull request", "found", "runs", "seconds a run", "date")


def traced() -> Iterator[tuple[str, BisectedCommit]]:
    """Yield the commits recorded in the evidence, each with the id of its case."""
    for case in load_all_cases(ROOT / "cases"):
        if recorded := recorded_proof(case):
            yield from ((case.id, commit) for commit in recorded.commits)


def row(case_id: str, commit: BisectedCommit) -> list[str]:
    """Return the cells of a commit."""
    address = f"{PROJECTS[commit.package].repository}/commit/{commit.commit}"
    _, is_pull, number = commit.address.rpartition("/pull/")
    searched = commit.candidates != DOCUMENTED
    return [
        case_id,
        commit.kind,
        Markup(f"[{commit.commit[:10]}]({address})"),
        Markup(f"[#{number}]({commit.address})") if is_pull else "none",
        f"among {commit.candidates} commits" if searched else "as documented",
        str(commit.runs),
        f"{commit.seconds / commit.runs:.0f}",
        commit.date,
    ]


def page() -> str:
    """Return the page."""
    return pages.render("bisections", commits=Table(HEADER, [row(*one) for one in traced()]))
