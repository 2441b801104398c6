"""Small files that ask for much work are refused with a message, or their work is done once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.results import RunResult, TestResult, write_results
from pytest_vllm_regress.cases.stored import result_files
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments import git, recipes
from pytest_vllm_regress.environments.git import Repository
from pytest_vllm_regress.environments.recipes import load
from pytest_vllm_regress.environments.sources import find_source, parse_name
from pytest_vllm_regress.errors import EnvironmentFileError, UsageError
from tests.helpers.repositories import RepositoryBuilder


@pytest.mark.parametrize(("rules", "lines"), [(50, 0), (2, 60)])
@pytest.mark.timeout(300)
def test_rules_times_environments_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: int, lines: int
) -> None:
    assert recipes.MAX_RULES_WORK <= 100_000
    monkeypatch.setattr(recipes, "MAX_RULES_WORK", 1000)
    text = 'default = "e0"\n[environments]\n'
    text += "".join(f'e{number} = {{requirements = ["vllm==0.8.4"]}}\n' for number in range(50))
    constraints = ", ".join(f'"a{number}<2"' for number in range(lines))
    text += f'[[rules]]\npackage = "vllm"\nversions = "<2"\nconstraints = [{constraints}]\n' * rules
    (tmp_path / "environments.toml").write_text(text)
    with pytest.raises(EnvironmentFileError, match=r"rules: .* times 50 environments"):
        load(tmp_path / "environments.toml")


def test_links_to_one_result_file_are_read_once(tmp_path: Path) -> None:
    original = tmp_path / "original.json"
    write_results(
        original,
        RunResult((TestResult("a", "t", Verdict.FIXED, "why", "sim", "e", {"vllm": "0.8.4"}),)),
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(300):
        (folder / f"s{number}.json").symlink_to(original)
        os.link(original, folder / f"h{number}.json")
    (folder / "missing.json").symlink_to("nowhere")
    (folder / "loop.json").symlink_to("loop.json")
    files = result_files([folder, original])
    assert len(files) == 3
    assert {folder / "missing.json", folder / "loop.json"} <= set(files)


def test_huge_sparse_files_of_a_work_tree_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = RepositoryBuilder(tmp_path / "clone")
    first = builder.commit(
        "first", {"vllm/__init__.py": "", "vllm/a.py": "x" * 600, "vllm/b.py": "y" * 600}
    )
    name = parse_name(f"vllm@{builder.place}")
    assert name is not None
    with (builder.place / "vllm" / "huge").open("wb") as huge:
        huge.truncate(200 * 10**9)
    with pytest.raises(UsageError, match=r"huge: larger than .* bytes"):
        find_source(name)
    (builder.place / "vllm" / "huge").unlink()
    monkeypatch.setattr(git, "MAX_SOURCES", 1000)
    with pytest.raises(UsageError, match="exceeds the limits"):
        list(
            Repository.at(builder.place).contents(
                Repository.at(builder.place).files(first, "vllm").values()
            )
        )
    monkeypatch.setattr(git, "MAX_SOURCES", 1500)
    monkeypatch.setattr(git, "MAX_SOURCE", 500)
    with pytest.raises(UsageError, match="exceeds the limits"):
        list(
            Repository.at(builder.place).contents(
                Repository.at(builder.place).files(first, "vllm").values()
            )
        )
    monkeypatch.setattr(git, "MAX_SOURCE", 1500)
    (builder.place / "vllm" / "c.py").write_text("z" * 600)
    with pytest.raises(UsageError, match="larger than 1500 bytes"):
        find_source(name)
