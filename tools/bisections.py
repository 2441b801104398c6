"""The page of fixing and breaking commits, from the evidence of the cases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.proofs import proof
from pytest_vllm_regress.cases.proofs.proof import BisectedCommit
from pytest_vllm_regress.environments.sources import PROJECTS
from pytest_vllm_regress.util.report import Markup, markdown_table

ROOT = Path(__file__).parents[1]
DOCUMENTED = 2
"""Number of candidates if no search was needed: the documented commit and its parent."""
HEAD = """# Bisections

The commits that fixed or introduced the failures of the cases, as `vllm-regress validate --commits` recorded them in the
evidence. [How to bisect](../how-to/bisect.md). *As documented*: the commit that the case names was run, and its parent;
one shows the failure and the other does not. Otherwise the commit was found by a search, and confirmed by two more runs
of it and of its parent. *Seconds a run* are from a machine with two cores that did other work at the same time.

<!-- written by `python -m tools.docs` from the `evidence.json` of the cases; do not edit -->
"""
HEADER = ("case", "change", "commit", "pull request", "found", "runs", "seconds a run", "date")


def traced() -> Iterator[tuple[str, BisectedCommit]]:
    """Yield the commits recorded in the evidence, each with the id of its case."""
    for case in load_all_cases(ROOT / "cases"):
        if (case.directory / proof.FILE).exists():
            for commit in proof.read_proof(case.directory / proof.FILE).commits:
                yield case.id, commit


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
    table = markdown_table(HEADER, [row(case_id, commit) for case_id, commit in traced()])
    return "\n".join([HEAD, *table, ""])
