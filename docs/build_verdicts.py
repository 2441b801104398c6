"""Write the generated parts of docs/generated/verdicts.md: ``python docs/build_verdicts.py``.

The matrix and the boundaries come from cases/verdicts.json (written by `vllm-regress report --record`) and the proofs. Impostors come from each
case's evidence.json; mutations are run again. A test fails if the page differs.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from page_parts import replace_parts

from pytest_vllm_regress.audit.boundaries import boundaries
from pytest_vllm_regress.audit.verdict_table import read_table
from pytest_vllm_regress.cases import proof
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments.recipes import load
from pytest_vllm_regress.reporting.symbols import SYMBOLS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "generated" / "verdicts.md"
CASES = load_all_cases(ROOT / "cases")
TABLE = read_table(CASES)
LISTED = set(load(ROOT / "environments.toml").recipes)
"""Environments of the page. Verdicts of others are only in the table."""


def matrix_rows() -> Iterator[str]:
    cells = {case.id: {entry.environment: entry.verdict for entry in TABLE.of_case(case.id)} for case in CASES}
    environments = sorted(
        {name for row in cells.values() for name in row} & LISTED, key=lambda name: (_age(name), name)
    )
    yield f"| case | {' | '.join(environments)} |"
    yield f"| --- |{' --- |' * len(environments)}"
    for case_id, row in cells.items():
        yield f"| {case_id} | {' | '.join(_cell(row.get(name)) for name in environments)} |"

    unexpected = [
        f"{case_id} on {name} {verdict.value}"
        for case_id, row in cells.items()
        for name, verdict in row.items()
        if not verdict.expected
    ]
    yield ""
    yield f"Not as the case file says: {', '.join(unexpected)}." if unexpected else "All are as expected."


def boundary_rows() -> Iterator[str]:
    ends = [end for case in CASES for end in boundaries(case, TABLE)]
    yield f"{sum(end.observed for end in ends)} of {len(ends)} ends are observed."
    yield ""
    yield "| case | end | state | reason |"
    yield "| --- | --- | --- | --- |"
    for end in ends:
        yield f"| {end.case_id} | {end.package} {end.bound} | {end.state} | {end.reason} |"


def impostor_rows() -> Iterator[str]:
    yield "| case | affected | rejected | fixed | rejected |"
    yield "| --- | --- | --- | --- | --- |"
    for case in CASES:
        proven = proof.read_proof(case.directory / proof.FILE).environments
        rejected = {environment.environment: environment.impostors for environment in proven}
        sides = [listed[:1] for listed in (case.evidence.affected, case.evidence.fixed)]
        cells = [cell for side in sides for cell in ((side[0], str(rejected[side[0]])) if side else ("none", ""))]
        yield f"| {case.id} | {' | '.join(cells)} |"


def mutation_rows() -> Iterator[str]:
    sys.path.insert(0, str(ROOT))
    from tests.helpers import mutants

    detected: dict[str, list[tuple[str, ...]]] = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            for mutation, checks in mutants.mutant_detections(case, CASES, Path(folder)).items():
                detected.setdefault(mutation, []).append(checks)
    yield "| mutation | detected | by which check, in how many cases |"
    yield "| --- | --- | --- |"
    for mutation, by_case in detected.items():
        counts = Counter(_kind_of(check) for checks in by_case for check in checks)
        by_check = "; ".join(f"{check}: {count}" for check, count in counts.most_common())
        yield f"| {mutation} | {sum(map(bool, by_case))} of {len(CASES)} | {by_check} |"


def _kind_of(check: str) -> str:
    return re.sub(r"^(`judge` says) .*", r"\1 what is not expected", check)


def _cell(verdict: Verdict | None) -> str:
    return "" if verdict is None else f"{SYMBOLS[verdict]} {verdict.value}"


def _age(environment: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", environment)))


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "matrix": matrix_rows,
    "boundaries": boundary_rows,
    "impostors": impostor_rows,
    "mutations": mutation_rows,
}


def build_page(page: str) -> str:
    """Return the page with new generated parts."""
    return replace_parts(page, PARTS)


if __name__ == "__main__":
    PAGE.write_text(build_page(PAGE.read_text()))
