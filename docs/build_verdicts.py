"""Write the generated parts of docs/generated/verdicts.md: ``python docs/build_verdicts.py [RESULTS.json ...]``.

The verdicts of the result files (written by `vllm-regress matrix --results`) are first added to docs/records/verdicts.json. The matrix comes from
that record and, for cells that no matrix has run, from the proofs. Impostors come from each case's evidence.json; mutations are run again. A
test fails if the page differs.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from page_parts import replace_parts

from pytest_vllm_regress.cases import proof, results
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.verdict import Verdict, combine
from pytest_vllm_regress.reporting.symbols import SYMBOLS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "generated" / "verdicts.md"
RECORD = ROOT / "docs" / "records" / "verdicts.json"
CASES = load_all_cases(ROOT / "cases")
RELEASES = sorted({name for row in json.loads(RECORD.read_text(encoding="utf-8")).values() for name in row})
"""Environments of the page. Verdicts of others are in the proofs only."""
Cells = dict[str, dict[str, str]]
"""Verdicts by case and environment."""


def recorded() -> Cells:
    """Return the verdicts in the record."""
    cells: Cells = json.loads(RECORD.read_text(encoding="utf-8"))
    return cells


def combined() -> Cells:
    """Return the verdicts in the record and, for cells that it lacks, those of the proofs."""
    cells = {case.id: recorded().get(case.id, {}) for case in CASES}
    for case in CASES:
        for proven in proof.read_proof(case.directory / proof.FILE).environments:
            if proven.environment in RELEASES:
                cells[case.id].setdefault(proven.environment, proven.verdict)
    return cells


def add_results(files: list[Path]) -> None:
    """Add the verdicts of result files to the record."""
    cells = recorded()
    new = results.merge_results(map(results.read_results, files)).results
    for case, environment in sorted({(result.case_id, result.environment) for result in new}):
        if "@" in environment or "/" in environment:
            continue  # a commit, a work tree or an interpreter: only this machine has it
        verdict = combine(r.verdict for r in new if (r.case_id, r.environment) == (case, environment))
        cells.setdefault(case, {})[environment] = verdict.value
    cells = {case: dict(sorted(row.items(), key=lambda cell: _age(cell[0]))) for case, row in sorted(cells.items())}
    RECORD.write_text(json.dumps(cells, indent=1) + "\n")


def matrix_rows() -> Iterator[str]:
    cells, environments = combined(), sorted(RELEASES, key=_age)
    yield f"| case | {' | '.join(environments)} |"
    yield f"| --- |{' --- |' * len(environments)}"
    for case in CASES:
        yield f"| {case.id} | {' | '.join(_cell(cells[case.id].get(name)) for name in environments)} |"

    unexpected = [
        f"{case} on {name} {verdict}"
        for case, row in cells.items()
        for name, verdict in row.items()
        if not Verdict(verdict).expected
    ]
    yield ""
    yield f"Not as the case file says: {', '.join(unexpected)}." if unexpected else "All are as expected."


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


def _cell(verdict: str | None) -> str:
    return "" if verdict is None else f"{SYMBOLS[Verdict(verdict)]} {verdict}"


def _age(environment: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", environment)))


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "matrix": matrix_rows,
    "impostors": impostor_rows,
    "mutations": mutation_rows,
}


def build_page(page: str) -> str:
    """Return the page with new generated parts."""
    return replace_parts(page, PARTS)


if __name__ == "__main__":
    add_results([Path(argument) for argument in sys.argv[1:]])
    PAGE.write_text(build_page(PAGE.read_text()))
