"""Made-up projects for tests, and what is found in them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses.answer import UsesAnswer, answer
from pytest_vllm_regress.answers.uses.project import read_project


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write a project's files and return its folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def answer_for(folder: Path, history: History, files: Mapping[str, str]) -> UsesAnswer:
    return answer(read_project(write(folder, files), history), history)


def missing(result: UsesAnswer) -> dict[str, list[str]]:
    """Return what each release lacks, without the places."""
    return {
        release: [problem.text for problem in problems]
        for release, problems in result.problems.items()
    }
