"""Writes docs/findings/README.md out of the findings beside it: ``python docs/build_findings.py``.

With folders as arguments it first takes over what `vllm-regress fuzz --out FOLDER` left there: the smallest schema of each kind, and in
which of the named versions it still fails, by asking each of them again.

    python docs/build_findings.py /tmp/findings --ask lm-format-enforcer-0.10.3 --ask lm-format-enforcer-0.11.3
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
HEAD = """# Findings

<!-- written by docs/build_findings.py; do not edit -->

What `vllm-regress fuzz` found by asking each backend by itself, without vLLM: the smallest schema of each kind, in which of the versions asked
it still fails, and the upstream report where one is known. "Claims" says whether the backend says that it supports all that the schema uses
(the profiles in `pytest_vllm_regress/schemas/profile.py` name their sources). Each row is a file here: `vllm-regress replay docs/findings/FILE`
asks again. "not found" is what a short search of the trackers gave, no more.

Texts stand as a model would write them. The vocabulary is that of the forged checkpoint: bytes, and a few tokens of several letters.

"""


def kept(artefacts: Iterable[Artefact]) -> list[Artefact]:
    """The smallest of each kind: what a smaller one explains goes."""
    found: list[Artefact] = []
    for each in sorted(artefacts, key=lambda a: (len(json.dumps(a.question.schema)), a.environment)):
        smaller = [Finding(other.question, other.problem) for other in found if other.backend == each.backend]
        if not any(other.explains(each.question, each.problem) for other in smaller):
            found.append(each)
    return found


def asked(artefacts: list[Artefact], environments: list[str]) -> list[Artefact]:
    """Each with what the environments that have its backend answer now, in ``others``."""
    results = []
    with bare_session() as session:
        for each in artefacts:
            answers = {}
            for name in dict.fromkeys((each.environment, *environments)):
                if checker := Checker.if_there(session, name, each.backend, each.allowance):
                    answers[f"{each.backend} {checker.version}"] = replay(each, checker)[0].value
                    checker.close()
            results.append(dataclasses.replace(each, others={**each.others, **answers}))
    return results


def row(artefact: Artefact, known: dict[str, str]) -> str:
    """A row of the table."""
    schema = json.dumps(artefact.question.schema, ensure_ascii=False)
    failing = [name for name, answer in artefact.others.items() if answer == "STILL FAILS"]
    fixed = [name for name, answer in artefact.others.items() if answer == "FIXED"]
    claims = "yes" if features(artefact.question.schema) <= PROFILES[artefact.backend].features else "no"
    upstream = known.get(artefact.name, "not found")
    versions = ", ".join(name.rpartition(" ")[2] for name in failing)
    sound = ", ".join(name.rpartition(" ")[2] for name in fixed) or "-"
    seen = code(artefact.problem.words)
    cells = (
        f"[{artefact.backend}]({artefact.name})",
        artefact.problem.outcome,
        code(schema),
        seen,
        versions,
        sound,
        claims,
        upstream,
    )
    return f"| {' | '.join(cells)} |"


def code(text: str) -> str:
    """Text in a cell of a Markdown table, as it is."""
    short = text if len(text) <= 160 else text[:157] + "..."
    plain = short.replace("\n", " ").replace("|", "\\|")
    fence = "``" if "`" in plain else "`"
    return f"{fence}{plain}{fence}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--ask", action="append", default=[])
    given = parser.parse_args()
    if given.folders:
        found = kept(load(path) for folder in given.folders for path in sorted(folder.rglob("*.json")))
        for old in PLACE.glob("*.json"):
            old.unlink()
        for each in asked(found, given.ask):
            if any(answer == "STILL FAILS" for answer in each.others.values()):
                each.save(PLACE)
    known = tomllib.loads(UPSTREAM.read_text()) if UPSTREAM.exists() else {}
    artefacts = sorted(
        (load(path) for path in PLACE.glob("*.json")), key=lambda a: (a.backend, a.problem.outcome, a.problem.key)
    )
    head = "| backend | outcome | schema | seen | fails in | sound in | claims | upstream |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
    lines = [head, *(row(each, known) for each in artefacts)]
    (PLACE / "README.md").write_text(HEAD + "\n".join(lines) + f"\n\n{len(artefacts)} findings.\n", encoding="utf-8")


if __name__ == "__main__":
    main()
