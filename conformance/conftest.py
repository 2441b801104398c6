"""The conformance suite: what vLLM must do through the fixtures, one test for each cell of docs/conformance.md.

    pytest conformance --vllm-env vllm-0.9.2         # everything, in one environment
    vllm-regress conformance vllm-0.9.2 vllm-0.33.0        # the same in several, recorded

Without ``--vllm-env`` only the tests marked ``smoke`` run. Every test leaves its cell in the report's properties: section (the
module), check, and generation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_vllm_regress.engines.target import Target

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engine: starts real vLLM in a target environment (built on first use)")
    config.addinivalue_line("markers", "smoke: also runs where no environment was named")
    config.addinivalue_line(
        "markers", "generation_only(name, why): only this engine generation can show it; the other's cell is n/a: why"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.engine)
        item.user_properties += _cell(item)
        only = item.get_closest_marker("generation_only")
        if only and ("generation", only.args[0]) not in item.user_properties:
            item.add_marker(pytest.mark.skip(reason=only.args[1]))
    if not config.getoption("vllm_env"):
        left_out = [item for item in ours if not item.get_closest_marker("smoke")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session", autouse=True)
def described(vllm_env: Target, record_testsuite_property: Callable[[str, object], None]) -> None:
    """The report says what was installed."""
    record_testsuite_property("device", vllm_env.device)
    record_testsuite_property("python", vllm_env.installed.python)
    record_testsuite_property("versions", json.dumps(vllm_env.versions))


def _cell(item: pytest.Item) -> list[tuple[str, object]]:
    """The marker ``cell`` may name the check otherwise; parameters other than generation and environment are part of it."""
    assert isinstance(item, pytest.Function)
    params: dict[str, Any] = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    axes = dict(params.pop("engine_spec", {}))
    params.pop("vllm_env", None)
    generation = axes.pop("generation", "auto")
    words = [item.originalname.removeprefix("test_"), *map(str, axes.values()), *map(str, params.values())]
    return [
        ("section", item.path.stem.removeprefix("test_")),
        ("check", " ".join(filter(None, words)).replace("_", " ")),
        ("generation", generation),
    ]
