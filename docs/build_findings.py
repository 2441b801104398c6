"""Write docs/generated/findings.md from docs/findings: ``python docs/build_findings.py``.

With folders as arguments (written by `vllm-regress fuzz --out FOLDER`), it first replaces the
findings: the smallest schema of each kind is kept, and each version named by --ask is asked again.

    python docs/build_findings.py /tmp/findings --ask lm-format-enforcer-0.10.3 --ask
    lm-format-enforcer-0.11.3
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path

from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.fuzz.artefact import Artefact, load, replay
from pytest_vllm_regress.fuzz.checker import Checker
from pytest_vllm_regress.fuzz.finding import Finding
from pytest_vllm_regress.schemas import PROFILES, features

PLACE = Path(__file__).parent / "findings"
UPSTREAM = PLACE / "upstream.toml"
PAGE = Path(__file__).parent / "generated" / "findings.md"
HEAD = """# Findings

<!-- written by docs/build_findings.py; do not edit -->

Failures that `vllm-regress fuzz` found in structured-output backends alone, without vLLM. [How to
fuzz](../how-to/fuzz-backends.md). Each row shows the smallest schema of its kind, and the versions in which it fails or
works. *Claims* says whether the backend claims to support everything that the schema uses
(`pytest_vllm_regress/schemas/profile.py` names the sources). *Upstream* is a known report; "not found" means that a
short search of the trackers found none.

Each row links to a file; `vllm-regress replay docs/findings/FILE` checks it again. Texts are written with the
vocabulary of the forged checkpoint: bytes, and a few tokens of several letters.

"""


def distinct(artefacts: Iterable[Artefact]) -> list[Artefact]:
    """Return the smallest of each kind: those that no smaller one explains."""
    chosen: list[Artefact] = []
    for artefact in sorted(
        artefacts, key=lambda a: (len(json.dumps(a.question.schema)), a.environment)
    ):
        smaller = [
            Finding(other.question, other.problem)
            for other in chosen
            if other.backend == artefact.backend
        ]
        if not any(other.explains(artefact.question, artefact.problem) for other in smaller):
            chosen.append(artefact)
    return chosen


def with_answers(artefacts: list[Artefact], environments: list[str]) -> list[Artefact]:
    """Ask every environment that has the backend of an artefact again; the answers go into
    ``others``."""
    updated = []
    with bare_session() as session:
        for artefact in artefacts:
            answers = {}
            for name in dict.fromkeys((artefact.environment, *environments)):
                if checker := Checker.create_if_installed(
                    session, name, artefact.backend, artefact.allowance
                ):
                    answers[f"{artefact.backend} {checker.version}"] = replay(artefact, checker)[
                        0
                    ].value
                    checker.close()
            updated.append(dataclasses.replace(artefact, others={**artefact.others, **answers}))
    return updated


def row(artefact: Artefact, known: dict[str, str]) -> str:
    """Return a row of the table."""
    schema = json.dumps(artefact.question.schema, ensure_ascii=False)
    failing = [name for name, answer in artefact.others.items() if answer == "STILL FAILS"]
    fixed = [name for name, answer in artefact.others.items() if answer == "FIXED"]
    claims = (
        "yes" if features(artefact.question.schema) <= PROFILES[artefact.backend].features else "no"
    )
    upstream = known.get(artefact.name, "not found")
    fails_in = ", ".join(name.rpartition(" ")[2] for name in failing)
    works_in = ", ".join(name.rpartition(" ")[2] for name in fixed) or "-"
    cells = (
        f"[{artefact.backend}](../findings/{artefact.name})",
        artefact.problem.outcome,
        code(schema),
        code(artefact.problem.words),
        fails_in,
        works_in,
        claims,
        upstream,
    )
    return f"| {' | '.join(cells)} |"


def code(text: str) -> str:
    """Return text as code in a cell of a Markdown table, shortened to 160 characters."""
    short = text if len(text) <= 160 else text[:157] + "..."
    plain = short.replace("\n", " ").replace("|", "\\|")
    fence = "``" if "`" in plain else "`"
    return f"{fence}{plain}{fence}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--ask", action="append", default=[])
    arguments = parser.parse_args()
    if arguments.folders:
        new = distinct(
            load(path) for folder in arguments.folders for path in sorted(folder.rglob("*.json"))
        )
        for old in PLACE.glob("*.json"):
            old.unlink()
        for artefact in with_answers(new, arguments.ask):
            if any(answer == "STILL FAILS" for answer in artefact.others.values()):
                artefact.save(PLACE)
    known = tomllib.loads(UPSTREAM.read_text()) if UPSTREAM.exists() else {}
    artefacts = sorted(
        (load(path) for path in PLACE.glob("*.json")),
        key=lambda a: (a.backend, a.problem.outcome, a.problem.key),
    )
    head = "| backend | outcome | schema | problem | fails in | works in | claims | upstream |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
    lines = [head, *(row(artefact, known) for artefact in artefacts)]
    PAGE.write_text(HEAD + "\n".join(lines) + f"\n\n{len(artefacts)} findings.\n", encoding="utf-8")


if __name__ == "__main__":
    main()
