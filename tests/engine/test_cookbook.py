"""Every recipe of docs/cookbook.md, as it stands there, on one environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.built import need_built

pytestmark = pytest.mark.engine
ENVIRONMENT = "vllm-0.33.0"
PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
HEAD, *RECIPES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_recipes_are_short() -> None:
    assert RECIPES and all(len(recipe.splitlines()) <= 12 for recipe in RECIPES)
    names = [name for recipe in RECIPES for name in re.findall(r"^def (\w+)\(", recipe, re.MULTILINE)]
    assert len(names) == len(set(names)) == len(RECIPES)


@pytest.mark.usefixtures("user_caches")
def test_cookbook(pytester: pytest.Pytester) -> None:
    need_built(ENVIRONMENT)
    pytester.makepyfile("\n\n".join([HEAD, *RECIPES]))
    result = pytester.runpytest_subprocess(
        "-rs", f"--vllm-env={ENVIRONMENT}", "--vllm-leftovers=fail", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=len(RECIPES))
