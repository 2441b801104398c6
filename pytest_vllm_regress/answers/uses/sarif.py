"""An answer as SARIF: a rule for each kind of use, a result for each use that some release lacks or
will remove."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..audit.sarif import log, result
from .answer import Answer
from .model import KINDS
from .report import span

_REMOVED = "vllm-deprecated"


def to_sarif(answer: Answer, source: str) -> dict[str, Any]:
    """Return a SARIF log. What a release of a declared range lacks is a warning, anything else a
    note.

    Without a declared range the newest release stands for it.
    """
    order = list(answer.problems)
    wanted = {release for releases in answer.broken.values() for release in releases} or {
        answer.newest
    }
    if answer.project.declared and not answer.broken:
        wanted = set()
    lacking: dict[tuple[str, str, int, str], list[str]] = {}
    for release, problems in answer.problems.items():
        for problem in problems:
            place = problem.use.place
            lacking.setdefault((problem.use.kind, place.file, place.line, problem.text), []).append(
                release
            )
    results = [
        result(
            f"vllm-{kind}",
            "warning" if wanted & set(releases) else "note",
            f"{text}: vLLM {span(releases, order)}",
            Path(file),
            line,
            source,
        )
        for (kind, file, line, text), releases in lacking.items()
    ]
    for deprecation in answer.deprecated:
        place = deprecation.use.place
        message = f"{deprecation.use.name}: {deprecation.message}"
        results.append(result(_REMOVED, "note", message, Path(place.file), place.line, source))
    used = {entry["ruleId"] for entry in results}
    rules = {
        f"vllm-{kind}": _rule(f"vllm-{kind}", f"A {kind} that some release of vLLM lacks")
        for kind in KINDS
    }
    rules[_REMOVED] = _rule(_REMOVED, "Something that vLLM will remove")
    return log({name: rule for name, rule in rules.items() if name in used}, results)


def _rule(name: str, title: str) -> dict[str, Any]:
    return {
        "id": name,
        "shortDescription": {"text": title},
        "fullDescription": {"text": title},
        "help": {
            "text": "Change the code, ask for the version, or narrow the range of vLLM that the project declares."
        },
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["vllm", "compatibility"]},
    }
