"""Whether the lines that a fix removed still stand in the installed sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.fixes.index import Fix, digest, fix_index
from pytest_vllm_regress.answers.fixes.installed_lines import InstalledSources
from pytest_vllm_regress.answers.fixes.suggestions import Suggestion
from pytest_vllm_regress.cli.front_door import main
from pytest_vllm_regress.errors import UsageError

REMOVED = ("assert block.ref_count == 0", "self.blocks.append(block)")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    vllm = tmp_path / "env" / "lib" / "python3.12" / "site-packages" / "vllm"
    (vllm / "core").mkdir(parents=True)
    (vllm / "__init__.py").touch()
    (vllm / "core" / "pool.py").write_text(f"def f(block):\n    {REMOVED[0]}\n")
    (tmp_path / "env" / "pyvenv.cfg").write_text("version = 3.12.1\n")
    return tmp_path / "env"


def fix(*removed: str, path: str = "core/pool.py") -> Fix:
    digests = "".join(map(digest, removed))
    return Fix(1, "abc", "2026-01-01", "Fix", {path: ["f"]}, "", digests, 0)


def test_the_removed_lines_that_are_still_there_are_counted(environment: Path) -> None:
    sources = InstalledSources.of(str(environment))
    assert sources.said_of(fix(*REMOVED)) == "1 of 2 lines that it removed are still installed"
    assert "it may be in already" in sources.said_of(fix(REMOVED[1]))
    assert sources.said_of(fix()) == ""
    assert sources.remaining(fix(*REMOVED, path="core/gone.py")) == 0


def test_a_fix_of_which_nothing_is_left_to_remove_is_not_likely(environment: Path) -> None:
    sources = InstalledSources.of(str(environment))
    for removed, is_likely in (((REMOVED[0],), True), ((REMOVED[1],), False), ((), True)):
        checked = Suggestion(fix(*removed), "0.11.0", "why", is_likely=True).checked(sources)
        assert checked.is_likely is is_likely
        assert checked.to_json()["installed"] == sources.said_of(fix(*removed))
        assert checked.installed in checked.text


def test_an_environment_without_vllm_or_that_is_not_built_is_refused(environment: Path) -> None:
    (environment / "lib" / "python3.12" / "site-packages" / "vllm" / "__init__.py").unlink()
    with pytest.raises(UsageError, match="has no vLLM"):
        InstalledSources.of(str(environment))
    with pytest.raises(UsageError, match="env build vllm-"):
        InstalledSources.of("vllm-0.6.6")


def test_explain_says_it_of_each_suggested_change(
    environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO 06-01 16:46:04 [api_server.py:1] vLLM API server version 0.22.0\n"
        "Traceback (most recent call last):\n"
        '  File "/x/vllm/model_executor/models/qwen2_5_vl.py", line 410, in forward\n'
        "RuntimeError: cu_seqlens_q must be on CUDA\n"
    )
    main(["explain", str(log), "--env", str(environment), "--format", "json"])
    fixes = json.loads(capsys.readouterr().out)["fixes"]
    index = fix_index()
    removing = [entry for entry in fixes if index.find(entry["fix"]).removed]
    assert removing and all("it may be in already" in entry["installed"] for entry in removing)
