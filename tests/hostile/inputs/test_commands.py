"""Commands given files and values that nobody writes end with a message, never with an internal
error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.cli import main
from pytest_vllm_regress.cli.doctor import _row
from tests.helpers import ROOT

FINDING = next((ROOT / "docs" / "findings").glob("xgrammar-compile-error-*.json"))
ODD = ("", "\ud800", "x\ny", "\x1b[2J", "../../x", "a" * 300, '"""', "-x", "[", "\\", "\u2028")
KEYS = ("problem.key", "problem.words", "problem.text", "upstream", "environment", "profile")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))


def finding(path: Path, key: str, value: Any) -> Path:
    """Write a finding with another value for ``key``."""
    document = json.loads(FINDING.read_text())
    *parents, last = key.split(".")
    node = document
    for parent in parents:
        node = node[parent]
    node[last] = value
    path.write_text(json.dumps(document))
    return path


def test_a_finding_without_its_packages_version_needs_the_affected_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = finding(tmp_path / "finding.json", "versions", {"torch": "2.6.0"})
    assert main(["--cases", "cases", "new", "--finding", str(file)]) == 2
    assert "versions has no xgrammar" in capsys.readouterr().err
    assert main(["--cases", "cases", "new", "--finding", str(file), "--affected", "<0.2"]) == 0


@pytest.mark.parametrize("value", ODD, ids=ascii)
def test_a_finding_with_odd_texts_becomes_a_case_or_is_refused(tmp_path: Path, value: str) -> None:
    for key in KEYS:
        folder = tmp_path / key
        file = finding(tmp_path / "finding.json", key, value)
        assert main(["--cases", str(folder), "new", "--finding", str(file)]) in (0, 2)
    for versions in ({"xgrammar": value}, {value: "1"}):
        file = finding(tmp_path / "finding.json", "versions", versions)
        assert main(["--cases", str(tmp_path / "versions"), "new", "--finding", str(file)]) in (
            0,
            2,
        )


@pytest.mark.parametrize("value", ODD, ids=ascii)
def test_options_of_new_with_odd_texts_are_used_or_refused(tmp_path: Path, value: str) -> None:
    for option in (
        "title",
        "family",
        "package",
        "affected",
        "kind",
        "phase",
        "pattern",
        "affected-env",
        "control",
    ):
        assert main(
            ["--cases", str(tmp_path / option), "new", "vllm#1", f"--{option}={value}"]
        ) in (0, 2)


@pytest.mark.parametrize(
    "command", [["list"], ["show", "a"], ["judge", "a"], ["validate", "--check"]]
)
def test_a_case_file_that_is_a_link_to_itself_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    for name, target in (("a", "case.toml"), ("b", "../a/case.toml"), ("c", "nowhere")):
        (tmp_path / "cases" / name).mkdir(parents=True)
        (tmp_path / "cases" / name / "case.toml").symlink_to(target)
    (tmp_path / "cases" / "d").symlink_to("d")
    assert main(["--cases", "cases", *command]) == 2
    printed = capsys.readouterr()
    assert "a/case.toml" in printed.err + printed.out


@pytest.mark.parametrize(
    "command", [["report"], ["judge"], ["fuzz", "replay"], ["audit"], ["new", "--finding"]]
)
def test_a_file_that_is_a_link_to_itself_is_refused(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert main([*command, str(tmp_path / "loop")]) == 2


@pytest.mark.parametrize("since", [1e300, -1e300, 1e18, -1.0, 0.0, float("inf"), float("nan")])
def test_leftovers_of_any_date_are_listed(since: float) -> None:
    leftover: Any = {
        "what": "x",
        "size": 1,
        "since": since,
        "owner": "y",
        "removed": False,
        "name": "z",
    }
    assert _row(leftover, remove=False)[0] == "x"
