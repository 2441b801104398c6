"""The markers of a test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.errors import Unsupported
from pytest_vllm_regress.plugin.markers import check_requirements


def check(versions: dict[str, str], **required: str) -> None:
    item: Any = SimpleNamespace(nodeid="test", iter_markers=lambda name: [getattr(pytest.mark, name)(**required).mark])
    target: Any = SimpleNamespace(name="it", versions=versions)
    check_requirements(item, target)


@pytest.mark.parametrize(
    ("installed", "required"),
    [("0.8.5", ">=0.8"), ("0.8.5+cpu", "==0.8.5"), ("0.9.0rc1", "*"), ("0.34.0", ">=0.7,<0.8.5 || >=0.34")],
)
def test_requirements_that_are_met(installed: str, required: str) -> None:
    check({"vllm": installed}, vllm=required)


@pytest.mark.parametrize(
    ("versions", "has"), [({"vllm": "0.9.0"}, "it has vllm 0.9.0"), ({"ray": "2.0"}, "it has no vllm")]
)
def test_requirements_that_are_not_met(versions: dict[str, str], has: str) -> None:
    with pytest.raises(Unsupported, match=has):
        check(versions, vllm=">=0.7,<0.8.5 || >=0.34")
