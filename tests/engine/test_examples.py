"""The Python examples of README, tutorial and guides, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import ROOT

pytestmark = pytest.mark.engine


@pytest.mark.usefixtures("user_caches")
def test_examples_run(pytester: pytest.Pytester) -> None:
    for page in ("README.md", "docs/tutorial.md", "docs/guides.md"):
        for number, example in enumerate(
            re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
        ):
            Path(pytester.path, f"test_{Path(page).stem.lower()}_{number}.py").write_text(example)
    pytester.runpytest_subprocess("--vllm-env=vllm-0.8.5", "-p", "no:cacheprovider").assert_outcomes(passed=5)
