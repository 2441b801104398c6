"""The page "Write a test": its samples are real, its code and tables are valid."""

from __future__ import annotations

import ast
import json
import re
import tomllib

import pytest

import pytest_vllm_regress
from pytest_vllm_regress.cases.loading import control_problems
from pytest_vllm_regress.engines.engine import CompletionOutput, RequestOutput
from pytest_vllm_regress.errors import Part
from tests.helpers import ROOT

PAGE = (ROOT / "docs" / "how-to" / "write-a-test.md").read_text()
OBSERVED = "\n".join(
    text
    for file in sorted(ROOT.glob("cases/*/observations.json"))
    for result in json.loads(file.read_text())["results"]
    for text in result["observation"]["parts"].values()
)


def without_numbers(text: str) -> str:
    """Replace what differs between runs: times, process and thread numbers, line numbers."""
    return re.sub(r"\d+", "#", text)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("sample", blocks("text"))
def test_samples_occur_in_observations_of_cases(sample: str) -> None:
    observed = without_numbers(OBSERVED)
    assert [line for line in sample.splitlines() if without_numbers(line) not in observed] == []


@pytest.mark.parametrize("code", blocks("python"))
def test_code_is_python_and_imports_public_names(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == "pytest_vllm_regress":
            assert {alias.name for alias in node.names} <= set(pytest_vllm_regress.__all__)


@pytest.mark.parametrize("table", blocks("toml"))
def test_controls_are_valid(table: str) -> None:
    assert control_problems(tomllib.loads(table)["control"]) == []


def test_parts_and_fields_are_named() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {part.value for part in Part} <= named
    assert RequestOutput.__annotations__.keys() | CompletionOutput.__annotations__.keys() <= named
    errors = set(
        re.findall(
            r"^\| `(\w+)`",
            PAGE.partition("## What goes wrong")[2].partition("## The text")[0],
            re.M,
        )
    )
    assert errors - {"AssertionError"} <= set(pytest_vllm_regress.__all__) and len(errors) == 6
