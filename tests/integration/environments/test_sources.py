"""Environments from source, with made-up repositories and wheels."""

from __future__ import annotations

import datetime
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from pytest_vllm_regress.engines import target as device
from pytest_vllm_regress.engines.target import BORROWED, Target
from pytest_vllm_regress.environments import bases, names, sources
from pytest_vllm_regress.environments import install as installing
from pytest_vllm_regress.environments import install as overlay
from pytest_vllm_regress.environments.cache import EnvironmentCache, bytecode_folder
from pytest_vllm_regress.environments.git import Repository
from pytest_vllm_regress.environments.installed import read_installed
from pytest_vllm_regress.environments.names import resolve
from pytest_vllm_regress.environments.recipes import RELEASE, Recipe
from pytest_vllm_regress.environments.sources import parse_name
from pytest_vllm_regress.errors import BuildError, EnvironmentFileError, UsageError
from tests.helpers.fake_vllm import RELEASED, TORCH, TREE, WHEEL, Index
from tests.helpers.repositories import RepositoryBuilder
from tests.integration.environments.conftest import Fake


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    index = Index()
    monkeypatch.setattr(bases, "newest_release", index.newest)
    monkeypatch.setattr(bases, "release_date", index.date)
    monkeypatch.setattr(bases, "pin_of", lambda package, version, dependency: TORCH[version])
    monkeypatch.setattr(bases, "releases", lambda package: tuple(map(Version, RELEASED)))
    for variable in ("VLLM_REGRESS_SOURCE_VLLM", sources.WHEEL_INDEX):
        monkeypatch.setenv(variable, "")  # undoes what a test sets
    names._base_release.cache_clear()
    yield
    names._base_release.cache_clear()


@pytest.fixture
def builder(tmp_path: Path) -> RepositoryBuilder:
    """Create a clone with the commits first, kernel and docs on main, and use it."""
    builder = RepositoryBuilder(tmp_path / "clone")
    builder.commit("first (#1)", TREE)
    builder.commit("a kernel (#2)", {"csrc/kernel.cu": "two\n"})
    builder.commit("docs (#3)", {"docs/index.md": "words"})
    builder.commit("value is two (#4)", {"vllm/old.py": "value = 2\n"})
    sources.set_clones([str(builder.place)])
    return builder


@pytest.fixture
def cache(fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EnvironmentCache:
    """Build environments with WHEEL."""
    monkeypatch.setattr(installing, "install", install)
    return EnvironmentCache(tmp_path / "cache")


def install(recipe: Recipe, lock: Path | None, python: Path, progress: object) -> Path | None:
    (python.parent.parent / "pyvenv.cfg").write_text(
        f"home = {Path(sys.executable).resolve().parent}\n"
    )
    site = python.parent.parent / "lib/python3.11/site-packages"
    later = {
        f"{line.replace('-', '_')}-1.dist-info/METADATA": "" for line in recipe.requirements[1:]
    }
    for name, content in (WHEEL | later).items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
    return None


def test_names_are_parsed() -> None:
    for name, base, revision, is_path in (
        ("vllm@0e42544", "", "0e42544", False),
        ("vllm@origin/main~3", "", "origin/main~3", False),
        ("vllm-0.8.4+vllm@v0.8.5", "vllm-0.8.4", "v0.8.5", False),
        ("vllm@/home/x+vllm@y", "", "/home/x+vllm@y", True),
        ("vllm@.", "", ".", True),
        ("vllm-0.8.4+xgrammar==1.0+vllm@../x", "vllm-0.8.4+xgrammar==1.0", "../x", True),
    ):
        named = parse_name(name)
        assert named is not None
        assert (named.base, named.what, named.is_path) == (base, revision, is_path)
    assert parse_name("/opt/vllm@1/bin/python") is None
    assert sources.names_interpreter("/opt/vllm@1/bin/python")
    assert not sources.names_interpreter("vllm@./x")


def test_a_commit_overlays_the_release_of_its_date(
    builder: RepositoryBuilder, cache: EnvironmentCache
) -> None:
    recipe = resolve("vllm@main")
    assert recipe.overlay is not None
    assert recipe.name == f"vllm@{builder.git('rev-parse', 'main')[:10]}"
    assert recipe.overlay.base.name == "vllm-0.2"
    assert (
        recipe.overlay.version == f"0.3.dev2+g{builder.git('rev-parse', 'main')[:7]}"
    )  # the commits of 3 and 4 March
    python = cache.ensure(recipe)
    site = python.parent.parent / "lib/python3.11/site-packages"
    assert (site / "vllm/old.py").read_text() == "value = 2\n"
    assert not (site / "vllm/new.py").exists()  # the release's, after a rename
    assert (site / "vllm/_C.abi3.so").is_symlink()
    assert (site / "vllm/flash/interface.py").is_symlink()
    assert (site / "vllm/flash/utils.py").read_text() == ""
    assert recipe.overlay.version in (site / "vllm/_version.py").read_text()
    assert cache.built(recipe) == python
    assert (
        sum(environment.size for environment in cache.listing() if "@" in environment.name) < 2**20
    )


def test_the_interpreter_imports_the_commit_and_its_base(
    builder: RepositoryBuilder, cache: EnvironmentCache
) -> None:
    recipe = resolve("vllm@main")
    assert recipe.overlay is not None
    python = cache.ensure(recipe)
    code = (
        "import sys, importlib.metadata as m, vllm, vllm._version, numpy; print(vllm.value, m.version('vllm'), vllm._version.__version__,"
        "numpy.here, sys.hacked, [e.name for e in m.entry_points(group='console_scripts') if e.name == 'vllm'])"
    )
    tag = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if tag != "python3.11":
        (python.parent.parent / "lib" / tag).symlink_to("python3.11")
    words = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    version = recipe.overlay.version
    assert words[:3] == ["2", version, version]
    folder = bytecode_folder(python)
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([python, "-c", "import vllm, numpy"], env=environment, check=True)
    compiled = {
        path.parent.name
        for path in (cache.place(recipe.overlay.base) / overlay.BYTECODE).rglob("*.pyc")
    }
    assert ("numpy" in compiled, "vllm" in compiled) == (
        True,
        False,
    )  # the commit's own are its own
    assert list((python.parent.parent / overlay.BYTECODE).rglob("vllm/old.*.pyc"))
    assert Path(words[3]).is_relative_to(cache.place(recipe.overlay.base))
    assert words[4:] == ["True", "['vllm']"]


def test_remarks_describe_what_is_not_from_the_commit(
    builder: RepositoryBuilder, cache: EnvironmentCache
) -> None:
    recipe = resolve("vllm@main")
    assert recipe.overlay is not None
    assert (
        recipe.overlay.remarks
        == "compiled parts of the 0.2 wheel; no files of csrc and cmake differ from it"
    )
    assert (
        bases.remarks(recipe.overlay.source, "0.1")
        == "compiled parts of the 0.1 wheel; how csrc differs is not known"
    )
    builder.git("tag", "v0.1", "main~3")
    assert bases.remarks(recipe.overlay.source, "0.1") == (
        "compiled parts of the 0.1 wheel; 1 file of csrc and cmake differs from it"
    )
    python = cache.ensure(recipe)
    target = Target(recipe.name, python, "sim", read_installed(python))
    assert target.versions[BORROWED] == recipe.overlay.remarks
    assert recipe.overlay.remarks in target.describe()
    for kind in ("cpu", "gpu"):
        with pytest.raises(UsageError, match="simulated device, or a wheel of exactly this commit"):
            device.choose(kind, target.installed)
    assert device.choose("auto", target.installed) == "sim"


def test_a_base_can_be_named_and_must_be_for_sim(builder: RepositoryBuilder) -> None:
    recipe = resolve("vllm-0.1+vllm@main")
    assert recipe.overlay is not None
    assert (recipe.overlay.base.name, recipe.name[:16]) == (
        "vllm-0.1",
        "vllm-0.1+vllm@" + builder.git("rev-parse", "main")[:2],
    )
    with pytest.raises(UsageError, match="only on the simulated device"):
        resolve("vllm-cpu-0.2+vllm@main")
    with pytest.raises(EnvironmentFileError, match="unknown environment"):
        resolve("vlm-0.1+vllm@main")


def test_tags_choose_by_ancestry_and_fit(builder: RepositoryBuilder) -> None:
    builder.git("tag", "v0.2", "main~3")  # csrc differs since
    builder.git("tag", "v0.3", "main")
    recipe = resolve("vllm@main~1")
    assert recipe.overlay is not None
    assert recipe.overlay.base.name == "vllm-0.3"  # the first that has it; csrc is the same
    builder.git("tag", "v0.3rc1", "main~1")
    assert bases.first_release_with(recipe.overlay.source) == "0.3"
    names._base_release.cache_clear()
    builder.commit("another torch (#5)", {"requirements/cuda.txt": "torch==2.7.0\n"})
    builder.git("tag", "--force", "v0.3", "main")
    again = resolve("vllm@main~2").overlay
    assert again is not None
    assert again.base.name == "vllm-0.2"  # compiled against the commit's torch


def test_without_tags_the_commits_torch_decides(builder: RepositoryBuilder) -> None:
    builder.commit("another torch (#5)", {"requirements/cuda.txt": "torch==2.7.0\n"})
    recipe = resolve("vllm@main")
    assert recipe.overlay is not None
    assert recipe.overlay.base.name == "vllm-0.3"
    assert bases.first_release_with(recipe.overlay.source) is None  # its day would say 0.3


def test_without_tags_the_release_after_the_commit_is_the_base(
    builder: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "pin_of", lambda package, version, dependency: "2.6.0")
    recipe = resolve("vllm@main")
    assert recipe.overlay is not None
    assert recipe.overlay.base.name == "vllm-0.3"
    # The version is that of the commit's date, not the base's.
    assert recipe.overlay.version == f"0.3.dev2+g{builder.git('rev-parse', 'main')[:7]}"
    builder.git("tag", "v0.3", "main")
    assert (
        bases.reported_version(recipe.overlay.source, "0.3")
        == f"0.3+g{builder.git('rev-parse', 'main')[:7]}"
    )
    names._base_release.cache_clear()
    before = resolve("vllm-0.3+vllm@main~1").overlay
    assert before is not None
    assert before.version == f"0.3.dev1+g{builder.git('rev-parse', 'main~1')[:7]}"


def test_commits_with_equal_requirements_share_a_base(
    builder: RepositoryBuilder, cache: EnvironmentCache
) -> None:
    kernels = "torch==2.6.1\nflashinfer-cubin==9\n"  # stay as in the base
    more = {
        "requirements/common.txt": "numpy\nmsgspec >= 0.18\nzeta-x\n",
        "requirements/cuda.txt": kernels,
    }
    builder.commit("needs zeta (#5)", more)
    builder.commit("docs (#6)", {"docs/index.md": "more"})
    before, after = resolve("vllm@main~1"), resolve("vllm@main")
    assert before.overlay is not None and after.overlay is not None
    base = cache.ensure(before.overlay.base)
    completed = overlay.base_with_requirements(before.overlay, base)
    assert completed is not None
    assert completed == overlay.base_with_requirements(after.overlay, base)
    assert set(completed.requirements) - set(before.overlay.base.requirements) == {"zeta-x"}
    assert completed.exclude_newer == "2025-03-06"  # the day after the requirements were changed
    assert ("vllm", RELEASE) in completed.exclude_newer_package
    first, second = cache.ensure(before), cache.ensure(after)
    assert (
        len(
            [
                environment
                for environment in cache.listing()
                if environment.name == "vllm-0.2+requirements"
            ]
        )
        == 1
    )
    pth = "lib/python3.11/site-packages/000-vllm-regress-base.pth"
    assert (first.parent.parent / pth).read_text() == (second.parent.parent / pth).read_text()
    assert str(cache.place(completed)) in (first.parent.parent / pth).read_text()


def test_a_work_tree_is_identified_by_its_content(builder: RepositoryBuilder) -> None:
    clean = resolve(f"vllm@{builder.place}")
    assert clean.overlay is not None
    assert clean.overlay.source.key == f"vllm@{builder.git('rev-parse', 'HEAD')}"
    keys = {clean.overlay.source.key}
    for file, content in (
        ("vllm/old.py", "value = 3\n"),
        ("vllm/new_module.py", ""),
        ("requirements/common.txt", "numpy\n"),
    ):
        (builder.place / file).write_text(content)
        dirty = resolve(f"vllm@{builder.place}").overlay
        assert dirty is not None
        assert dirty.source.key not in keys
        keys.add(dirty.source.key)
        assert ".d" in dirty.version
    (builder.place / "vllm/_C.abi3.so").write_text("built here")
    (builder.place / "docs/index.md").write_text("not code")
    (builder.place / "vllm/old.py").unlink()
    last = resolve(f"vllm@{builder.place}").overlay
    assert last is not None
    assert [path for path, _ in last.source.files()] == [
        "vllm/__init__.py",
        "vllm/flash/utils.py",
        "vllm/new_module.py",
    ]
    (builder.place / "vllm/old.py").write_text("value = 3\n")
    assert resolve(f"vllm@{builder.place}").overlay.source.key in keys  # type: ignore[union-attr]


def test_invalid_input_is_rejected(
    builder: RepositoryBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            resolve(name)

    refused("vllm@no-such-branch", "no commit 'no-such-branch'")
    refused("vllm@--all", "no commit '--all'")
    refused(f"vllm@{tmp_path}", "not a git repository")
    refused(f"vllm@{tmp_path / 'nowhere'}", "not a git repository")
    builder.commit("all moved away", {"vllm/__init__.py": None})
    refused("vllm@main", "has no vllm/__init__.py: not a commit of vllm")
    refused(f"vllm@{builder.place}", "has no vllm/__init__.py: not a tree of vllm")
    monkeypatch.setitem(RELEASED, "0.1", datetime.date(2025, 4, 1))
    monkeypatch.setitem(RELEASED, "0.2", datetime.date(2025, 4, 2))
    refused("vllm@main~2", "older than every release of vllm with a wheel")
    monkeypatch.delenv("VLLM_REGRESS_SOURCE_VLLM")
    monkeypatch.chdir(tmp_path)
    refused(
        "vllm@main", "needs a clone of https://github.com/vllm-project/vllm: name one by --source"
    )
    monkeypatch.chdir(builder.place)
    builder.git("reset", "--quiet", "--hard", "main~1")
    refused("vllm@main", "older than every release")  # the checkout around the working directory


def test_a_shallow_clone_is_reported(builder: RepositoryBuilder, tmp_path: Path) -> None:
    builder.git(
        "clone", "--quiet", "--depth=1", f"file://{builder.place}", str(tmp_path / "shallow")
    )
    sources.set_clones([str(tmp_path / "shallow")])
    with pytest.raises(UsageError, match="git fetch --unshallow"):
        resolve("vllm@main~2")
    with pytest.raises(UsageError, match="a shallow clone, whose history is cut off"):
        Repository.at(tmp_path / "shallow").need_history()
    (tmp_path / "shallow/vllm/old.py").write_text("value = 3\n")
    recipe = resolve(
        f"vllm@{tmp_path / 'shallow'}"
    )  # a work tree is enough; its distance from the release is not known
    assert recipe.overlay is not None
    assert recipe.overlay.version.startswith("0.3.dev0+g")


def test_a_url_is_cloned_once(
    builder: RepositoryBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    sources.set_clones([f"file://{builder.place}"])
    first = resolve("vllm@main")
    builder.place.rename(tmp_path / "gone")
    assert resolve("vllm@main").name == first.name
    sources.set_clones([f"file://{tmp_path}/nowhere"])
    with pytest.raises(UsageError, match="cannot be cloned"):
        resolve("vllm@main")
    assert len(list((tmp_path / "cache" / "clones").glob("*.git"))) == 1
    assert not list((tmp_path / "cache" / "clones").glob("*.part"))


def test_programs_in_a_git_configuration_are_not_run(
    builder: RepositoryBuilder, tmp_path: Path, cache: EnvironmentCache
) -> None:
    trap = tmp_path / "trap"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {trap}\ncat\n")
    program.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "filter.x.smudge",
        "filter.x.clean",
        "core.pager",
        "gpg.program",
        "diff.external",
    ):
        builder.git("config", key, str(program))
    builder.git("config", "log.showSignature", "true")
    (builder.place / ".git/info/attributes").write_text("*.py filter=x\n")
    hook = builder.place / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(program.read_text())
    hook.chmod(0o755)
    cache.ensure(resolve("vllm@main"))
    (builder.place / "vllm/old.py").write_text("value = 9\n")
    cache.ensure(resolve(f"vllm@{builder.place}"))
    Repository.at(builder.place).between("main~2", "main")
    assert not trap.exists()


def test_a_full_disk_leaves_no_partial_overlay(
    builder: RepositoryBuilder, cache: EnvironmentCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = resolve("vllm@main")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(overlay, "_write_metadata", full)
    with pytest.raises(BuildError, match="the disk is full"):
        cache.ensure(recipe)
    assert not cache.place(recipe).exists()
    monkeypatch.undo()


def test_the_base_stays_while_the_overlay_is_used(
    builder: RepositoryBuilder, cache: EnvironmentCache
) -> None:
    recipe = resolve("vllm@main")
    with cache.lease(recipe):
        environments = {environment.name: environment for environment in cache.listing()}
        assert environments["vllm-0.2"].in_use
        assert not cache.remove(environments["vllm-0.2"])
    assert cache.remove(environments["vllm-0.2"])
    assert cache.built(recipe) is None
    with cache.lease(recipe) as python:  # the base is built again, in its old place
        assert (
            python.parent.parent / "lib/python3.11/site-packages/vllm/_C.abi3.so"
        ).read_text() == "library"


def test_a_grammar_package_over_any_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = RepositoryBuilder(tmp_path / "lmfe")
    builder.commit("v0.1", {"lmformatenforcer/__init__.py": "", "pyproject.toml": ""})
    builder.git("tag", "v0.1")
    builder.commit("fix (#2)", {"lmformatenforcer/__init__.py": "fixed = True\n"})
    sources.set_clones([f"lm-format-enforcer={builder.place}"])
    recipe = resolve("lm-format-enforcer-0.1+lm-format-enforcer@main")
    assert recipe.overlay is not None
    assert recipe.overlay.version.startswith("0.2.dev1+g")
    assert recipe.overlay.remarks == ""
    with_vllm = resolve("vllm-0.8.5-lmfe-0.10.3+lm-format-enforcer@main")
    assert with_vllm.overlay is not None
    assert with_vllm.overlay.base.name == "vllm-0.8.5-lmfe-0.10.3"


def test_a_commits_own_wheel_from_an_index_is_for_every_device(
    builder: RepositoryBuilder, fake: Fake, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"with \{commit\} in it"):
        sources.set_wheel_index("https://wheels.example.org/")
    sources.set_wheel_index("https://wheels.example.org/{commit}/")
    commit = builder.git("rev-parse", "main")
    recipe = resolve("vllm@main")
    assert recipe.overlay is None
    site = "lib/python3.11/site-packages"
    cache = EnvironmentCache(tmp_path / "cache")
    (fake.folder / "version").write_text("0.2.dev7+gfffffff")
    with pytest.raises(
        BuildError, match=r"provided vllm 0\.2\.dev7.gfffffff, which is not a build of"
    ):
        cache.ensure(recipe)
    assert not cache.place(recipe).exists()
    (fake.folder / "version").write_text(f"0.2.dev7+g{commit[:9]}")
    python = cache.ensure(recipe)
    _, call = fake.calls("install", "--extra-index-url")
    assert call[call.index("--extra-index-url") + 1] == f"https://wheels.example.org/{commit}/"
    assert "vllm" in call
    assert not any(word.startswith("vllm==") for word in call)
    target = Target(recipe.name, python, "sim", read_installed(python))
    assert BORROWED not in target.versions
    assert (python.parent.parent / site).is_dir()
    (builder.place / "vllm/old.py").write_text("value = 3\n")
    assert (
        resolve(f"vllm@{builder.place}").overlay is not None
    )  # no index has the wheel of a changed tree
