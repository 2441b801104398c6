"""Upstream's tests of a revision as a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.environments.git import Repository
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.surveys.upstream import tree as tree_module
from pytest_vllm_regress.surveys.upstream.tree import TestTree, texts_in, write_tree
from tests.helpers.repositories import RepositoryBuilder

FILES = {
    "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['a']\n",
    "vllm/__init__.py": "",
    "examples/template.jinja": "{{ x }}",
    "tests/utils.py": "OTHER = 'owner/shared'\n",
    "tests/entrypoints/test_one.py": "MODEL = 'owner/model'\nTEMPLATE = 'examples/template.jinja'\nTYPE = 'application/json'\n"
    "FILE = 'vllm/outputs.py'\nBARE = 'gpt2'\n",
    "tests/entrypoints/test_two.py": "MODEL = 'owner/second'\n",
    "tests/entrypoints/data.txt": "text",
}


@pytest.fixture
def tree(tmp_path: Path) -> TestTree:
    builder = RepositoryBuilder(tmp_path / "clone")
    builder.commit("tests", FILES)
    root = tmp_path / "tree"
    root.mkdir()
    return write_tree(Repository.at(builder.place), "main", root)


def test_the_tree_has_tests_and_examples_and_no_package_that_would_hide_the_installed_one(
    tree: TestTree,
) -> None:
    files = {
        path.relative_to(tree.root).as_posix() for path in tree.root.rglob("*") if path.is_file()
    }
    assert files == set(FILES) - {"vllm/__init__.py"}


def test_folders_and_files_select_test_files_once(tree: TestTree) -> None:
    one, two = "tests/entrypoints/test_one.py", "tests/entrypoints/test_two.py"
    assert tree.select([one]) == (one,)
    assert tree.select([two, "tests/entrypoints/"]) == (two, one)


@pytest.mark.parametrize(
    "path", ["tests/missing", "../clone/tests", "/etc", "examples/template.jinja"]
)
def test_a_path_without_tests_is_refused(tree: TestTree, path: str) -> None:
    with pytest.raises(UsageError):
        tree.select([path])


def test_names_of_the_hub_are_texts_that_are_no_paths_and_no_media_types(tree: TestTree) -> None:
    assert tree.hub_names(["tests/entrypoints/test_one.py"]) == (
        "owner/shared",
        "owner/model",
        "gpt2",
    )


def test_a_name_is_looked_for_in_the_files_that_are_run(tree: TestTree) -> None:
    assert tree.mentions(
        "owner/model", ["tests/entrypoints/test_two.py", "tests/entrypoints/test_one.py"]
    )
    assert not tree.mentions("owner/model", ["tests/entrypoints/test_two.py"])


@pytest.mark.parametrize("source", [b"def", b"\0", b"(" * 5000, b"\xff\xfe"])
def test_source_that_cannot_be_parsed_has_no_texts(source: bytes) -> None:
    assert texts_in(source) == ()


def test_a_commit_without_tests_is_refused(tmp_path: Path) -> None:
    builder = RepositoryBuilder(tmp_path / "clone")
    builder.commit("nothing", {"README": ""})
    (tmp_path / "tree").mkdir()
    with pytest.raises(UsageError, match="has no folder tests"):
        write_tree(Repository.at(builder.place), "main", tmp_path / "tree")


@pytest.mark.parametrize("files", [None, {"README": ""}, {"tests/test_old.py": ""}])
def test_tests_of_a_release_that_the_clone_does_not_have_come_from_its_source_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str] | None
) -> None:
    asked: list[str] = []

    def source_distribution(package: str, version: str, say: object) -> Path:
        asked.append(f"{package} {version}")
        return tmp_path / "archive"

    contents = {"tests/test_new.py": b"", "vllm/a.py": b"", "pyproject.toml": b"[a]"}
    monkeypatch.setattr(tree_module, "source_distribution", source_distribution)
    monkeypatch.setattr(
        tree_module,
        "read_source_distribution",
        lambda archive, wanted: {path: text for path, text in contents.items() if wanted(path)},
    )
    repository = None
    if files is not None:
        builder = RepositoryBuilder(tmp_path / "clone")
        builder.commit("old", files)
        repository = Repository.at(builder.place)
    (tmp_path / "tree").mkdir()
    tree = write_tree(repository, "v1.2", tmp_path / "tree", release="1.2")
    assert (tree.revision, asked) == ("v1.2", ["vllm 1.2"])
    assert tree.select(["tests/test_new.py"])
    assert (tree.root / "pyproject.toml").read_bytes() == b"[a]"
    assert not (tree.root / "vllm").exists()


def test_a_revision_with_tests_is_not_replaced_by_the_release(tmp_path: Path) -> None:
    builder = RepositoryBuilder(tmp_path / "clone")
    commit = builder.commit("tests", FILES)
    (tmp_path / "tree").mkdir()
    repository = Repository.at(builder.place)
    assert write_tree(repository, "main", tmp_path / "tree", release="1.2").revision == commit


@pytest.mark.parametrize(
    "names", [("tests/a", "tests/a/test_b.py"), ("tests/../../test_c.py",), ("tests//test_d.py",)]
)
def test_a_source_distribution_writes_nothing_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(tree_module, "source_distribution", lambda *_: tmp_path / "archive")
    monkeypatch.setattr(
        tree_module, "read_source_distribution", lambda *_: dict.fromkeys(names, b"")
    )
    (tmp_path / "tree").mkdir()
    with pytest.raises(UsageError, match=names[-1].rpartition("/")[0]):
        write_tree(None, "v1.2", tmp_path / "tree", release="1.2")
    assert not list(tmp_path.glob("test_*"))
