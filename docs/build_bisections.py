"""Write docs/generated/bisections.md, the table of fixing and breaking commits: ``python
docs/build_bisections.py``.

The commits come from the evidence of the cases. A test fails if the page differs from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from page_parts import replace_parts

from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.proofs import proof
from pytest_vllm_regress.cases.proofs.proof import BisectedCommit
from pytest_vllm_regress.environments.sources import PROJECTS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "generated" / "bisections.md"
DOCUMENTED = 2
"""Number of candidates if no search was needed: the documented commit and its parent."""


def traced() -> Iterator[tuple[str, BisectedCommit]]:
    """Yield the commits recorded in the evidence, each with the id of its case."""
    for case in load_all_cases(ROOT / "cases"):
        if (case.directory / proof.FILE).exists():
            for commit in proof.read_proof(case.directory / proof.FILE).commits:
                yield case.id, commit


def rows() -> Iterator[str]:
    yield "| case | change | commit | pull request | found | runs | seconds a run | date |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for case_id, commit in traced():
        address = f"{PROJECTS[commit.package].repository}/commit/{commit.commit}"
        _, is_pull, number = commit.address.rpartition("/pull/")
        cells = (
            case_id,
            commit.kind,
            f"[{commit.commit[:10]}]({address})",
            f"[#{number}]({commit.address})" if is_pull else "none",
            "as documented"
            if commit.candidates == DOCUMENTED
            else f"among {commit.candidates} commits",
            str(commit.runs),
            f"{commit.seconds / commit.runs:.0f}",
            commit.date,
        )
        yield f"| {' | '.join(cells)} |"


def build_page(page: str) -> str:
    """Return the page with a new table."""
    return replace_parts(page, {"bisections": rows})


if __name__ == "__main__":
    PAGE.write_text(build_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
