"""Writes the generated parts of docs/verdicts.md: ``python docs/build_verdicts.py [RESULTS.json ...]``. A test refuses a page that differs.

Verdicts come from docs/records/verdicts.json, into which result files that are named are taken over first (`vllm-regress matrix --results`
writes them), and from proofs where no matrix went; impostors from each case's evidence.json; mutations are made anew.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from generated import rebuilt

from pytest_vllm_regress.cases import proof, results
from pytest_vllm_regress.cases.model import find_cases
from pytest_vllm_regress.cases.verdict import Verdict, combine
from pytest_vllm_regress.reporting.signs import SIGNS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "verdicts.md"
RECORD = ROOT / "docs" / "records" / "verdicts.json"
CASES = find_cases(ROOT / "cases")
RELEASES = sorted({name for row in json.loads(RECORD.read_text(encoding="utf-8")).values() for name in row})
"""Environments of the page; what others showed stands in the proofs."""
Cells = dict[str, dict[str, str]]
"""Verdicts by case and environment."""


def recorded() -> Cells:
    """What matrices showed."""
    cells: Cells = json.loads(RECORD.read_text(encoding="utf-8"))
    return cells


def shown() -> Cells:
    """What matrices showed, and proofs where no matrix went."""
    cells = {case.id: recorded().get(case.id, {}) for case in CASES}
    for case in CASES:
        for each in proof.read(case.directory / proof.FILE).environments:
            if each.environment in RELEASES:
                cells[case.id].setdefault(each.environment, each.verdict)
    return cells


def take_over(files: list[Path]) -> None:
    """The verdicts of result files into the record."""
    cells = recorded()
    found = results.merge(map(results.read, files)).results
    for case, environment in sorted({(each.case_id, each.environment) for each in found}):
        if "@" in environment or "/" in environment:
            continue  # a commit, a work tree or an interpreter of somebody's machine
        seen = combine(r.verdict for r in found if (r.case_id, r.environment) == (case, environment))
        cells.setdefault(case, {})[environment] = seen.value
    cells = {case: dict(sorted(row.items(), key=lambda cell: _age(cell[0]))) for case, row in sorted(cells.items())}
    RECORD.write_text(json.dumps(cells, indent=1) + "\n")


def matrix_rows() -> Iterator[str]:
    cells, environments = shown(), sorted(RELEASES, key=_age)
    yield f"| case | {' | '.join(environments)} |"
    yield f"| --- |{' --- |' * len(environments)}"
    for case in CASES:
        yield f"| {case.id} | {' | '.join(_cell(cells[case.id].get(name)) for name in environments)} |"

    odd = [
        f"{case} on {name} {verdict}"
        for case, row in cells.items()
        for name, verdict in row.items()
        if not Verdict(verdict).expected
    ]
    yield ""
    yield f"Not as the case file says: {', '.join(odd)}." if odd else "All are as expected."


def impostor_rows() -> Iterator[str]:
    yield "| case | affected | told apart | fixed | told apart |"
    yield "| --- | --- | --- | --- | --- |"
    for case in CASES:
        told = {each.environment: each.impostors for each in proof.read(case.directory / proof.FILE).environments}
        sides = [listed[:1] for listed in (case.evidence.affected, case.evidence.fixed)]
        cells = [cell for side in sides for cell in ((side[0], str(told[side[0]])) if side else ("none", ""))]
        yield f"| {case.id} | {' | '.join(cells)} |"


def mutation_rows() -> Iterator[str]:
    sys.path.insert(0, str(ROOT))
    from tests.helpers import mutants

    noticed: dict[str, list[tuple[str, ...]]] = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            for way, by in mutants.every_way(case, CASES, Path(folder)).items():
                noticed.setdefault(way, []).append(by)
    yield "| mutation | noticed | by what, in how many cases |"
    yield "| --- | --- | --- |"
    for way, found in noticed.items():
        by_what = Counter(_kind_of(each) for by in found for each in by)
        told = "; ".join(f"{what}: {times}" for what, times in by_what.most_common())
        yield f"| {way} | {sum(map(bool, found))} of {len(CASES)} | {told} |"


def _kind_of(noticed: str) -> str:
    return re.sub(r"^(`judge` says) .*", r"\1 what is not expected", noticed)


def _cell(verdict: str | None) -> str:
    return "" if verdict is None else f"{SIGNS[Verdict(verdict)]} {verdict}"


def _age(environment: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", environment)))


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "matrix": matrix_rows,
    "impostors": impostor_rows,
    "mutations": mutation_rows,
}


def built(page: str) -> str:
    """The page with its generated parts written anew."""
    return rebuilt(page, PARTS)


if __name__ == "__main__":
    take_over([Path(each) for each in sys.argv[1:]])
    PAGE.write_text(built(PAGE.read_text()))
