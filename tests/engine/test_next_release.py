"""The next release, rehearsed: the newest commit of a clone over a release, with what breaks named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from tests.helpers.environments import vllm_sources
from tests.helpers.repositories import RepositoryBuilder

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("user_caches")]
RELEASE = "vllm-0.8.5"
LLM = "vllm/entrypoints/llm.py"


def test_what_the_newest_commit_breaks_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--yes", "env", "build", RELEASE]) == 0
    capfd.readouterr()
    files = vllm_sources(RELEASE)
    clone = RepositoryBuilder(tmp_path / "clone")
    clone.commit("The release", files)
    newest = clone.commit("A rename", {LLM: files[LLM].replace("def chat(", "def converse(")})

    environment = f"{RELEASE}+vllm@{newest[:10]}"
    source = ("--yes", "--source", str(clone.place))
    checks = ("--", "-k", "test_offline and (test_generate or test_chat)")
    try:
        options = ("--env", f"{RELEASE}+vllm@main", "--format", "markdown")
        status = cli.main([*source, "survey", "conformance", *options, *checks])
    finally:
        assert cli.main(["env", "prune", environment]) == 0

    shown, said = capfd.readouterr()
    assert status == 1, shown + said
    assert shown.startswith("| environment "), "standard output has the page alone"
    assert f"{RELEASE}+vllm@main" in shown, "it says over which release"
    assert "no attribute 'chat'" in shown and "generate: not known" not in shown
