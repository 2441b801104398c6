"""Fields of the engine that a project sets for all its tests, and markers that are added late."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = """
import pytest

def test_plain(engine_spec):
    assert (engine_spec.max_model_len, engine_spec.tensor_parallel_size) == (1024, 2)
    assert engine_spec.model == "classifier"

@pytest.mark.vllm_engine(max_model_len=100)
def test_marked(engine_spec):
    assert (engine_spec.max_model_len, engine_spec.tensor_parallel_size) == (100, 2)

def test_added(engine_spec):
    assert engine_spec.max_model_len == 200

def test_axis(engine_spec): pass
"""
CONFTEST = """
import pytest

def pytest_configure(config):
    config.addinivalue_line("vllm_engine_defaults", "model = classifier")

def pytest_collection_modifyitems(items):
    added = {"test_added": 200, "test_axis": [1, 2]}
    for item in items:
        if item.name in added:
            item.add_marker(pytest.mark.vllm_engine(max_model_len=added[item.name]))
"""


def test_the_marker_comes_before_the_projects_defaults(
    pytester: pytest.Pytester, affected_target: Path
) -> None:
    pytester.makeini("[pytest]\nvllm_engine_defaults =\n  max_model_len = 1024\n  tp = 2\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess(f"--vllm-env={affected_target}")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(
        ["*test_axis: vllm_engine(max_model_len=[[]...[]]) was added when*"]
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max_model_ln = 8", "*vllm_engine_defaults: *Did you mean max_model_len?*"),
        ("max_model_len = short", "*vllm_engine_defaults: *'short' is not a whole number*"),
    ],
)
def test_a_bad_default_names_its_option(
    pytester: pytest.Pytester, affected_target: Path, line: str, words: str
) -> None:
    pytester.makeini(f"[pytest]\nvllm_engine_defaults = {line}\n")
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess(f"--vllm-env={affected_target}")
    result.stdout.fnmatch_lines([words])
