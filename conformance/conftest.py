"""The conformance suite: what vLLM must do through the fixtures. Each test is one cell of
docs/generated/conformance.md.

    pytest conformance --vllm-env vllm-0.9.2               # the whole suite in one environment
    vllm-regress survey conformance --env vllm-0.9.2 --env vllm-0.33.0    # the same in several

Without ``--vllm-env`` only the tests marked ``smoke`` run. Each test writes the properties of its
cell to the report: section (the module), check and generation. The check is the test's name, so
renaming a test renames its cell in the records.
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
    config.addinivalue_line(
        "markers", "engine: starts real vLLM in a target environment (built on first use)"
    )
    config.addinivalue_line("markers", "smoke: also runs if no environment is named")
    config.addinivalue_line(
        "markers",
        "generation_only(name, why): only this engine generation can be tested; the cell of the other is n/a: why",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    suite = [item for item in items if HERE in item.path.parents]
    for item in suite:
        item.add_marker(pytest.mark.engine)
        item.user_properties += _cell(item)
        only = item.get_closest_marker("generation_only")
        if only and ("generation", only.args[0]) not in item.user_properties:
            item.add_marker(pytest.mark.skip(reason=only.args[1]))
    if not config.getoption("vllm_env"):
        deselected = [item for item in suite if not item.get_closest_marker("smoke")]
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]


@pytest.fixture(scope="session")
def facts(vllm_env: Target) -> dict[str, str]:
    """What the report says about the environment."""
    return {
        "device": vllm_env.device,
        "python": vllm_env.installed.python,
        "versions": json.dumps(vllm_env.versions),
    }


@pytest.fixture(scope="session", autouse=True)
def described(
    facts: dict[str, str], record_testsuite_property: Callable[[str, object], None]
) -> None:
    for name, value in facts.items():
        record_testsuite_property(name, value)


@pytest.fixture(autouse=True)
def described_by_worker(request: pytest.FixtureRequest, facts: dict[str, str]) -> None:
    """Write the facts to each test: pytest-xdist passes on no other properties."""
    if hasattr(request.config, "workerinput"):
        request.node.user_properties += facts.items()


def _cell(item: pytest.Item) -> list[tuple[str, object]]:
    """Return the properties of a test's cell.

    Parameters other than generation and environment are part of the check's name.
    """
    assert isinstance(item, pytest.Function)
    params: dict[str, Any] = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    axes = dict(params.pop("engine_spec", {}))
    params.pop("vllm_env", None)
    generation = axes.pop("generation", "auto")
    words = [
        item.originalname.removeprefix("test_"),
        *map(str, axes.values()),
        *map(str, params.values()),
    ]
    return [
        ("section", item.path.stem.removeprefix("test_")),
        ("check", " ".join(filter(None, words)).replace("_", " ")),
        ("generation", generation),
    ]
