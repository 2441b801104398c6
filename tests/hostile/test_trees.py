"""Git repositories that somebody else made: their paths stay below the tree, and nothing of their
configuration runs or reads elsewhere."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress.environments import git, sources
from pytest_vllm_regress.environments import install as overlay
from pytest_vllm_regress.environments.git import Repository
from pytest_vllm_regress.environments.recipes import Overlay, Recipe
from pytest_vllm_regress.environments.sources import (
    PROJECTS,
    Source,
    SourceName,
    find_source,
    source_at_commit,
)
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.surveys.upstream.tree import write_tree
from pytest_vllm_regress.util.files import create_below, parts_below, read_below
from tests.helpers.repositories import RepositoryBuilder

VLLM = PROJECTS["vllm"]
NOBODY = 65534
LEAVING = ["..", ".", ".git", ".GIT", "../..", "/etc", "a/../../..", "a//b"]


@pytest.fixture
def origin(tmp_path: Path) -> RepositoryBuilder:
    origin = RepositoryBuilder(tmp_path / "clone")
    origin.commit(
        "first",
        {"vllm/__init__.py": "", "vllm/sub/a.py": "a = 1\n", "requirements/common.txt": "numpy\n"},
    )
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.py").write_text("secret = 1\n")
    (tmp_path / "outside" / "common.txt").write_text("secret\n")
    return origin


def raw_tree(origin: RepositoryBuilder, entries: list[tuple[str, str, str]]) -> str:
    """Write a tree object with entries (mode, name, id) that git's own commands would refuse."""
    content = b"".join(
        f"{mode} {name}".encode() + b"\0" + bytes.fromhex(blob) for mode, name, blob in entries
    )
    command = ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"]
    done = subprocess.run(command, cwd=origin.place, input=content, capture_output=True, check=True)
    return done.stdout.decode().strip()


def commit_with(origin: RepositoryBuilder, name: str) -> str:
    """Return a commit with a file ``vllm/NAME/evil.py``, where the name stands as it is in the
    tree."""
    blob = origin.git("rev-parse", "HEAD:vllm/sub/a.py")
    empty = origin.git("rev-parse", "HEAD:vllm/__init__.py")
    inner = raw_tree(origin, [("100644", "evil.py", blob)])
    package = raw_tree(origin, [("100644", "__init__.py", empty), ("40000", name, inner)])
    root = raw_tree(origin, [("40000", "vllm", package)])
    return origin.git("commit-tree", "-m", "evil", root)


def write_index(place: Path, paths: list[str], blob: str) -> None:
    """Write an index with these paths, which ``git add`` would refuse."""
    body = struct.pack(">4sII", b"DIRC", 2, len(paths))
    for path in sorted(paths):
        name = path.encode()
        entry = (
            struct.pack(">10I20sH", *[0] * 6, 0o100644, 0, 0, 7, bytes.fromhex(blob), len(name))
            + name
        )
        body += entry + b"\0" * (8 - len(entry) % 8)
    (place / ".git" / "index").write_bytes(body + hashlib.sha1(body).digest())


@pytest.mark.parametrize("name", LEAVING)
def test_a_commit_with_a_path_that_leaves_its_tree_is_refused(
    name: str, origin: RepositoryBuilder
) -> None:
    repository = Repository.at(origin.place)
    commit = repository.commit(commit_with(origin, name))
    with pytest.raises(UsageError, match="the path"):
        source_at_commit(VLLM, repository, commit)


@pytest.mark.parametrize(
    "path", ["vllm/../../outside/a.py", "vllm//etc/passwd", "vllm/./a.py", "vllm/.git/config"]
)
def test_an_index_with_a_path_that_leaves_its_tree_is_refused(
    path: str, origin: RepositoryBuilder
) -> None:
    write_index(
        origin.place, ["vllm/__init__.py", path], origin.git("rev-parse", "HEAD:vllm/sub/a.py")
    )
    with pytest.raises(UsageError):
        find_source(SourceName("", VLLM, str(origin.place)))


@pytest.mark.parametrize("folder", ["vllm/sub", "requirements"])
def test_a_folder_swapped_for_a_link_is_refused(
    folder: str, origin: RepositoryBuilder, tmp_path: Path
) -> None:
    (origin.place / folder).rename(tmp_path / "before")
    (origin.place / folder).symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="is a symbolic link"):
        find_source(SourceName("", VLLM, str(origin.place)))


def test_a_folder_swapped_after_the_look_is_refused(
    origin: RepositoryBuilder, tmp_path: Path
) -> None:
    (origin.place / "vllm/sub/a.py").write_text("a = 2\n")
    source = find_source(SourceName("", VLLM, str(origin.place)))
    assert source.changed
    (origin.place / "vllm/sub").rename(tmp_path / "before")
    (origin.place / "vllm/sub").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="is a symbolic link"):
        list(source.files())


def test_files_that_are_links_or_pipes_are_not_read(
    origin: RepositoryBuilder, tmp_path: Path
) -> None:
    (origin.place / "vllm/link.py").symlink_to(tmp_path / "outside" / "a.py")
    os.mkfifo(origin.place / "vllm/pipe.py")
    (origin.place / "requirements/common.txt").unlink()
    (origin.place / "requirements/common.txt").symlink_to(tmp_path / "outside" / "common.txt")
    (origin.place / "requirements/cuda.txt").symlink_to("common.txt")
    source = find_source(SourceName("", VLLM, str(origin.place)))
    assert {path for path, _ in source.files()} == {"vllm/__init__.py", "vllm/sub/a.py"}
    assert b"secret" not in (source.read("requirements/common.txt") or b"")
    assert source.read("requirements/cuda.txt") == b"common.txt"


def test_a_huge_file_is_refused(origin: RepositoryBuilder) -> None:
    with (origin.place / "vllm/huge.py").open("wb") as stream:
        stream.truncate(200 * 2**30)
    with pytest.raises(UsageError, match="larger than"):
        find_source(SourceName("", VLLM, str(origin.place)))


@dataclasses.dataclass(frozen=True)
class HostileSource(Source):
    path: str = ""

    def files(self) -> Iterator[tuple[str, bytes]]:
        yield self.path, b"evil"


@pytest.mark.parametrize(
    "path",
    ["../evil.py", "vllm/../../../../../evil.py", "/tmp/vllm-regress-evil.py", "vllm/x/../y.py"],
)
def test_an_overlay_is_not_left(path: str, origin: RepositoryBuilder, tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "bin").mkdir(parents=True)
    (base / "bin/python").symlink_to("/usr/bin/python3")
    (base / "pyvenv.cfg").write_text("")
    info = base / "lib/python3.11/site-packages/vllm-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: vllm\nVersion: 1.0\n")
    repository = Repository.at(origin.place)
    source = HostileSource(VLLM, repository, repository.commit("HEAD"), path=path)
    recipe = Overlay(source, Recipe("vllm-1.0", ("vllm==1.0",)), "1.0", "")
    with pytest.raises(UsageError, match="the path"):
        overlay.build_overlay(recipe, base / "bin/python", tmp_path / "place")
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.timeout(120)
def test_a_pipe_below_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_below(tmp_path, "pipe", 1) is None


def test_files_are_opened_below_a_folder_only(tmp_path: Path) -> None:
    (tmp_path / "tree" / "in").mkdir(parents=True)
    (tmp_path / "tree" / "out").symlink_to(tmp_path)
    (tmp_path / "secret").write_text("secret")
    create_below(tmp_path / "tree", "in/new/file", b"x")
    assert read_below(tmp_path / "tree", "in/new/file", 1) == b"x"
    assert read_below(tmp_path / "tree", "in/new/none", 1) is None
    assert read_below(tmp_path / "tree", "in/new/file/none", 1) is None
    for path in ("out/secret", "../secret", "in/../../secret", str(tmp_path / "secret")):
        with pytest.raises(UsageError):
            read_below(tmp_path / "tree", path, 100)
        with pytest.raises(UsageError):
            create_below(tmp_path / "tree", path, b"evil")
    (tmp_path / "tree" / "in" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        create_below(tmp_path / "tree", "in/link", b"evil")
    assert not (tmp_path / "elsewhere").exists()
    assert parts_below("a/b..c/...") == ("a", "b..c", "...")


def test_a_work_tree_elsewhere_is_refused(origin: RepositoryBuilder, tmp_path: Path) -> None:
    other = RepositoryBuilder(tmp_path / "private")
    other.commit("private", {"vllm/__init__.py": "secret = 1\n"})
    origin.git("config", "core.worktree", str(other.place))
    with pytest.raises(UsageError, match=r"core\.worktree"):
        find_source(SourceName("", VLLM, str(origin.place)))
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("secret = 1\n")
    origin.git("config", "core.worktree", str(tmp_path))
    with pytest.raises(UsageError, match=r"core\.worktree"):
        find_source(SourceName("", VLLM, str(origin.place)))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_repositories_of_others_are_used_only_if_they_are_named(
    origin: RepositoryBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (origin.place / "work").mkdir()
    os.chown(origin.place, NOBODY, NOBODY)
    os.chown(origin.place / ".git", NOBODY, NOBODY)
    monkeypatch.delenv("VLLM_REGRESS_SOURCE_VLLM", raising=False)
    monkeypatch.chdir(origin.place / "work")
    with pytest.raises(UsageError, match="another user"):
        sources.clone_of(VLLM)
    with pytest.raises(UsageError, match="another user"):
        Repository.at(origin.place / "work")
    assert Repository.at(origin.place).commit("HEAD").subject == "first"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_objects_of_others_are_not_borrowed(origin: RepositoryBuilder, tmp_path: Path) -> None:
    place = tmp_path / "shared"
    origin.git("clone", "--quiet", "--shared", str(origin.place), str(place))
    assert Repository.at(place).commit("HEAD").subject == "first"
    os.chown(origin.place / ".git" / "objects", NOBODY, NOBODY)
    with pytest.raises(UsageError, match="alternates"):
        Repository.at(place)


@pytest.mark.timeout(120)
def test_a_repository_that_blocks_is_given_up(
    origin: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "READ_TIMEOUT_S", 2.0)
    (origin.place / ".git/objects/info").mkdir(exist_ok=True)
    os.mkfifo(origin.place / ".git/objects/info/alternates")
    started = time.monotonic()
    with pytest.raises(UsageError, match="did not answer"):
        Repository.at(origin.place)
    assert time.monotonic() - started < 30


@pytest.mark.timeout(120)
def test_an_object_that_blocks_is_given_up(
    origin: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: contents were read without a deadline."""
    monkeypatch.setattr(git, "READ_TIMEOUT_S", 2.0)
    blob = origin.git("rev-parse", "HEAD:vllm/sub/a.py")
    path = origin.place / ".git/objects" / blob[:2] / blob[2:]
    path.unlink()
    os.mkfifo(path)
    repository = Repository.at(origin.place)
    with pytest.raises(UsageError, match="cat-file did not answer"):
        list(source_at_commit(VLLM, repository, repository.commit("HEAD")).files())


@pytest.mark.timeout(120)
def test_slow_rules_of_a_gitignore_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: they were applied without a deadline."""
    tmp_path.joinpath("rules").mkdir()
    paths = ["a/" * 1900 + "x"] * 500
    assert git.ignored(b"*.so\n", ["vllm/a.so"], tmp_path / "rules") == {"vllm/a.so"}
    run = git.Repository._run

    def hurry_after_init(repository: git.Repository, *arguments: str) -> str:
        output = run(repository, *arguments)
        monkeypatch.setattr(
            git, "READ_TIMEOUT_S", 0.02
        )  # far below what check-ignore needs for this, on any machine
        return output

    monkeypatch.setattr(git.Repository, "_run", hurry_after_init)
    with pytest.raises(UsageError, match="check-ignore did not answer"):
        git.ignored(b"**/a" * 40 + b"b\n", paths, tmp_path / "rules")


def test_a_commit_with_very_deep_folders_is_refused(
    origin: RepositoryBuilder, tmp_path: Path
) -> None:
    blob = origin.git("rev-parse", "HEAD:vllm/__init__.py")
    tree = raw_tree(origin, [("100644", "test_a.py", blob)])
    for _ in range(1500):
        tree = raw_tree(origin, [("40000", "d", tree)])
    package = raw_tree(origin, [("100644", "__init__.py", blob), ("40000", "d", tree)])
    commit = origin.git(
        "commit-tree",
        "-m",
        "deep",
        raw_tree(origin, [("40000", "tests", tree), ("40000", "vllm", package)]),
    )
    repository = Repository.at(origin.place)
    with pytest.raises(UsageError, match="more than 100 folders"):
        source_at_commit(VLLM, repository, repository.commit(commit))
    (tmp_path / "tree").mkdir()
    with pytest.raises(UsageError, match="more than 100 folders"):
        write_tree(repository, commit, tmp_path / "tree")


def test_submodules_and_included_settings_run_nothing(
    origin: RepositoryBuilder, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    trap.chmod(0o755)
    (origin.place / ".gitmodules").write_text(
        f'[submodule "m"]\n\tpath = vllm/m\n\turl = ext::{trap}\n\tignore = none\n\tfetchRecurseSubmodules = true\n'
    )
    inner = RepositoryBuilder(origin.place / "vllm/m")
    inner.commit("inner", {"inner.py": ""})
    origin.git("add", "--all", "--force")
    origin.git("commit", "--quiet", "-m", "a submodule")
    settings = tmp_path / "settings"
    settings.write_text(
        f"[core]\n\tfsmonitor = {trap}\n\thooksPath = {tmp_path}\n\tpager = {trap}\n\tsshCommand = {trap}\n\tgitProxy = {trap}\n"
        f"\talternateRefsCommand = {trap}\n\taskPass = {trap}\n\teditor = {trap}\n"
        f"[submodule]\n\trecurse = true\n[diff]\n\texternal = {trap}\n\tsubmodule = log\n[gpg]\n\tprogram = {trap}\n[log]\n\tshowSignature = true\n"
        f'[submodule "m"]\n\turl = ext::{trap}\n\tupdate = !{trap}\n\tactive = true\n[protocol]\n\tallow = always\n'
        f'[protocol "ext"]\n\tallow = always\n[remote "origin"]\n\turl = ext::{trap}\n\tpromisor = true\n\tuploadpack = {trap}\n'
        f'\tvcs = trap\n[filter "f"]\n\tclean = {trap}\n\tsmudge = {trap}\n\tprocess = {trap}\n[uploadpack]\n\tpackObjectsHook = {trap}\n'
        "[extensions]\n\tpartialClone = origin\n[core]\n\trepositoryFormatVersion = 1\n"
    )
    for where in (origin.place, inner.place):
        with (where / ".git/config").open("a") as config:
            config.write(
                f'[include]\n\tpath = {settings}\n[includeIf "gitdir:/**"]\n\tpath = {settings}\n'
            )
            config.write(settings.read_text())
        (where / ".git/info").mkdir(exist_ok=True)
        (where / ".git/info/attributes").write_text("* filter=f diff=f\n")
    (origin.place / "vllm/sub/a.py").write_text("a = 3\n")
    source = find_source(SourceName("", VLLM, str(origin.place)))
    assert dict(source.files())["vllm/sub/a.py"] == b"a = 3\n"
    repository = source.repository
    repository.between("HEAD~1", "HEAD")
    repository.has("0" * 39 + "1")
    with pytest.raises(UsageError, match="is missing"):
        list(repository.contents(["0" * 39 + "1"]))  # a partial clone would fetch it
    git.clone(f"file://{origin.place}", tmp_path / "copy.git")
    assert not (tmp_path / "ran").exists()
