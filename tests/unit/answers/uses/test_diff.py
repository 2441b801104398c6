"""What changed between two releases, for a project and as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.api_history.definitions import Option
from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses.diff import difference
from tests.unit.answers.uses.projects import write


@pytest.fixture(autouse=True)
def _made_up_history(two_releases: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_vllm_regress.cli.uses.history", lambda: two_releases)


def test_everything_that_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["uses", "--diff", "1.0", "2.0"]) == 0
    output = capsys.readouterr().out
    for line in (
        "--better: added",
        "--mode: changed no longer allows a",
        "VLLM_OLD: removed",
        "/v1/old: removed",
        "vllm:old: removed",
        "tool:hermes: removed",
        "vllm.utils:get_port: moved to vllm.utils.network:get_port",
        "vllm.llm:LLM.__init__: changed takes no old_option",
        "vllm.llm:LLM.generate: changed takes required (required); params only by keyword; use_tqdm only by keyword",
        "vllm.params:Params.guided: removed",
    ):
        assert f"  {line}\n" in output
    assert "vllm.params:Params.structured" not in output  # new symbols are only counted
    assert "new symbols" in output


def test_only_what_the_project_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = write(
        tmp_path,
        {
            "a.py": "from vllm import LLM, Params\nLLM('m')\nParams(guided='x')\n",
            "b.sh": "vllm serve m --mode b\n",
        },
    )
    assert cli.main(["uses", "--diff", "1.0", "2.0", str(project), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    changes = {(change["section"], change["name"]): change for change in report["changes"]}
    assert set(changes) == {
        ("options", "--mode"),
        ("symbols", "vllm.llm:LLM.__init__"),
        ("symbols", "vllm.params:Params.guided"),
    }
    assert changes["symbols", "vllm.params:Params.guided"]["places"] == [
        {"file": "a.py", "line": 3, "cell": 0}
    ]
    assert cli.main(["uses", "--diff", "1.0", "2.0", str(project), "--format", "markdown"]) == 0
    assert (
        "## options\n\n- ` --mode: changed no longer allows a (b.sh:1) `\n"
        in capsys.readouterr().out
    )


def test_back_to_an_earlier_release(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["uses", "--diff", "2.0", "1.0"]) == 0
    assert "  VLLM_OLD: added '1'\n" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["1.0", "9.9"], ["1.0", "2.0", "--format", "sarif"]])
def test_usage_errors(arguments: list[str]) -> None:
    assert cli.main(["uses", "--diff", *arguments]) == 2


@pytest.mark.parametrize(
    ("section", "old", "new", "text"),
    [
        ("symbols", "def(a, b=1, *c)", "def(a, b=2, *, d)", "takes no c; takes d (required); default of b 1 -> 2"),
        ("symbols", ": int = 1", ": int = 2", "default 1 -> 2"),
        ("symbols", ": int = 1", ": float = 1", ""),
        ("symbols", "class(A)", "class(B)", "class(A) -> class(B)"),
        ("symbols", "def(self)", ".", "def(self) -> ."),
        ("options", Option("1", ("a",)).text(), Option("2", ("b",)).text(), "default 1 -> 2; no longer allows a; also allows b"),
        ("requirements", "==2.6", "", "==2.6 -> none"),
    ],
)  # fmt: skip
def test_differences(section: str, old: str, new: str, text: str) -> None:
    assert difference(section, old, new) == text
