"""Whether an installed vLLM has what a project uses, against a made-up package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.processes.agent import TARGET_SITE
from pytest_vllm_regress.target_site.vllm_regress_target.installation import usage

FILES = {
    "__init__.py": "from .llm import LLM",
    "llm.py": """
class LLM:
    def __init__(self, model, seed=0, **more): self.engine = 1
    def generate(self, prompts, *, fast=False): ...
    @staticmethod
    def plain(one): ...
""",
    "broken.py": "import not_installed_anywhere",
    "ends.py": "raise SystemExit(3)",
    "envs.py": "environment_variables = {'VLLM_OLD': None}",
    "tool_parsers.py": "class ToolParserManager:\n    get_tool_parser = {'hermes': 1}.__getitem__",
}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "vllm").mkdir()
    for name, text in FILES.items():
        (tmp_path / "vllm" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("targets", "missing"),
    [
        (["vllm.LLM"], ""),
        (["vllm.llm.LLM.generate"], ""),
        (["vllm.gone", "vllm.LLM"], ""),
        (["vllm.gone"], "cannot import name 'gone' from 'vllm'"),
        (["vllm.gone.more"], "cannot import name 'gone' from 'vllm'"),
        (["vllm.LLM.gone"], "the class LLM has no gone"),
        (["vllm.LLM().engine"], None),
        (["vllm.broken.name"], None),
        (["vllm.ends.name"], None),
        (["os.system"], None),
        (["vllm.LLM; import os"], None),
    ],
)
def test_names(targets: list[str], missing: str | None) -> None:
    assert usage.name(targets) == missing


@pytest.mark.parametrize(
    ("target", "positional", "keywords", "missing"),
    [
        ("vllm.LLM().generate", 1, ["fast"], ""),
        ("vllm.LLM().generate", 2, [], "too many positional arguments"),
        ("vllm.LLM().generate", 1, ["slow"], "got an unexpected keyword argument 'slow'"),
        ("vllm.LLM().plain", 1, [], ""),
        ("vllm.LLM().plain", 2, [], "too many positional arguments"),
        ("vllm.LLM", 0, ["seed"], ""),
        ("vllm.LLM", 0, ["anything"], None),
    ],
)
def test_calls(target: str, positional: int, keywords: list[str], missing: str | None) -> None:
    assert usage.call([target], positional, keywords) == missing


def test_overrides() -> None:
    assert (
        usage.override(["vllm.LLM"], "generate", ["self", "prompts", "fast"], 1, [False, False])
        == ""
    )
    assert "fast" in str(
        usage.override(["vllm.LLM"], "generate", ["self", "prompts"], 1, [False, False])
    )
    assert usage.override(["vllm.LLM"], "generate", ["self"], 0, [True, True]) == ""
    assert (
        usage.override(["vllm.LLM"], "gone", [], 0, [False, False]) == "the class LLM has no gone"
    )


def test_variables_and_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TARGET_SITE))
    assert usage.environment("VLLM_OLD") == ""
    assert usage.environment("VLLM_NEW") == "vLLM does not read VLLM_NEW"
    assert usage.parser("tool", "hermes") == ""
    assert usage.parser("tool", "other") == "there is no tool parser other"
    assert usage.parser("reasoning", "other") is None
