"""Environments from source: which code, over which release, what is its own, and what is refused. Repositories and wheels are made up."""

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

from pytest_vllm_regress.engines import device
from pytest_vllm_regress.engines.target import BORROWED, Target
from pytest_vllm_regress.environments import bases, names, overlay, sources
from pytest_vllm_regress.environments import cache as envbuild
from pytest_vllm_regress.environments.cache import EnvironmentCache, bytecode_folder
from pytest_vllm_regress.environments.git import Repository
from pytest_vllm_regress.environments.installed import read_installed
from pytest_vllm_regress.environments.names import resolve
from pytest_vllm_regress.environments.recipes import RELEASE, Recipe
from pytest_vllm_regress.environments.sources import parse_name
from pytest_vllm_regress.errors import BuildError, EnvironmentFileError, UsageError
from tests.helpers.made_vllm import RELEASED, TORCH, TREE, WHEEL, Index
from tests.helpers.repositories import Maker
from tests.integration.environments.conftest import Fake


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    index = Index()
    monkeypatch.setattr(bases, "newest_release", index.newest)
    monkeypatch.setattr(bases, "release_date", index.date)
    monkeypatch.setattr(bases, "pin_of", lambda package, version, dependency: TORCH[version])
    monkeypatch.setattr(bases, "releases", lambda package: tuple(map(Version, RELEASED)))
    monkeypatch.delenv("VLLM_REGRESS_SOURCE_VLLM", raising=False)
    names._base_release.cache_clear()
    yield
    names._base_release.cache_clear()


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    """main: first, kernel, docs; the clone is in use."""
    made = Maker(tmp_path / "clone")
    made.commit("first (#1)", TREE)
    made.commit("a kernel (#2)", {"csrc/kernel.cu": "two\n"})
    made.commit("docs (#3)", {"docs/index.md": "words"})
    made.commit("value is two (#4)", {"vllm/old.py": "value = 2\n"})
    sources.use([str(made.place)])
    return made


@pytest.fixture
def cache(fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EnvironmentCache:
    """Environments whose wheel is WHEEL."""
    monkeypatch.setattr(envbuild, "install", install)
    return EnvironmentCache(tmp_path / "cache")


def install(recipe: Recipe, lock: Path | None, python: Path, progress: object) -> Path | None:
    (python.parent.parent / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    site = python.parent.parent / "lib/python3.11/site-packages"
    later = {f"{line.replace('-', '_')}-1.dist-info/METADATA": "" for line in recipe.requirements[1:]}
    for name, content in (WHEEL | later).items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
    return None


def test_names_are_taken_apart() -> None:
    for name, base, what, is_path in (
        ("vllm@0e42544", "", "0e42544", False),
        ("vllm@origin/main~3", "", "origin/main~3", False),
        ("vllm-0.8.4+vllm@v0.8.5", "vllm-0.8.4", "v0.8.5", False),
        ("vllm@/home/x+vllm@y", "", "/home/x+vllm@y", True),
        ("vllm@.", "", ".", True),
        ("vllm-0.8.4+xgrammar==1.0+vllm@../x", "vllm-0.8.4+xgrammar==1.0", "../x", True),
    ):
        named = parse_name(name)
        assert named is not None
        assert (named.base, named.what, named.is_path) == (base, what, is_path)
    assert parse_name("/opt/vllm@1/bin/python") is None
    assert sources.names_interpreter("/opt/vllm@1/bin/python")
    assert not sources.names_interpreter("vllm@./x")


def test_a_commit_is_laid_over_the_release_of_its_day(made: Maker, cache: EnvironmentCache) -> None:
    recipe = resolve("vllm@main")
    assert recipe.overlay is not None
    assert recipe.name == f"vllm@{made.git('rev-parse', 'main')[:10]}"
    assert recipe.overlay.base.name == "vllm-0.2"
    assert recipe.overlay.version == f"0.3.dev2+g{made.git('rev-parse', 'main')[:7]}"  # the commits of 3 and 4 March
    python = cache.ensure(recipe)
    site = python.parent.parent / "lib/python3.11/site-packages"
    assert (site / "vllm/old.py").read_text() == "value = 2\n"
    assert not (site / "vllm/new.py").exists()  # the release's, after a rename
    assert (site / "vllm/_C.abi3.so").is_symlink()
    assert (site / "vllm/flash/interface.py").is_symlink()
    assert (site / "vllm/flash/utils.py").read_text() == ""
    assert recipe.overlay.version in (site / "vllm/_version.py").read_text()
    assert cache.built(recipe) == python
    assert sum(each.size for each in cache.listing() if "@" in each.name) < 2**20


def test_the_interpreter_imports_the_commit_and_the_rest_of_the_base(made: Maker, cache: EnvironmentCache) -> None:
    recipe = resolve("vllm@main")
    assert recipe.overlay is not None
    python = cache.ensure(recipe)
    asked = (
        "import sys, importlib.metadata as m, vllm, vllm._version, numpy; print(vllm.value, m.version('vllm'), vllm._version.__version__,"
        "numpy.here, sys.hacked, [e.name for e in m.entry_points(group='console_scripts') if e.name == 'vllm'])"
    )
    tag = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if tag != "python3.11":
        (python.parent.parent / "lib" / tag).symlink_to("python3.11")
    said = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    version = recipe.overlay.version
    assert said[:3] == ["2", version, version]
    kept = bytecode_folder(python)
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(kept), "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([python, "-c", "import vllm, numpy"], env=environment, check=True)
    compiled = {each.parent.name for each in (cache.place(recipe.overlay.base) / overlay.BYTECODE).rglob("*.pyc")}
    assert ("numpy" in compiled, "vllm" in compiled) == (True, False)  # the commit's own are its own
    assert list((python.parent.parent / overlay.BYTECODE).rglob("vllm/old.*.pyc"))
    assert Path(said[3]).is_relative_to(cache.place(recipe.overlay.base))
    assert said[4:] == ["True", "['vllm']"]


def test_what_is_not_the_commits_own_is_said(made: Maker, cache: EnvironmentCache) -> None:
    recipe = resolve("vllm@main")
    assert recipe.overlay is not None
    assert recipe.overlay.remarks == "compiled parts of the 0.2 wheel; no files of csrc and cmake differ from it"
    assert (
        bases.remarks(recipe.overlay.source, "0.1") == "compiled parts of the 0.1 wheel; how csrc differs is not known"
    )
    made.git("tag", "v0.1", "main~3")
    assert bases.remarks(recipe.overlay.source, "0.1") == (
        "compiled parts of the 0.1 wheel; 1 file of csrc and cmake differs from it"
    )
    python = cache.ensure(recipe)
    target = Target(recipe.name, python, "sim", read_installed(python))
    assert target.versions[BORROWED] == recipe.overlay.remarks
    assert recipe.overlay.remarks in target.describe()
    for asked in ("cpu", "gpu"):
        with pytest.raises(UsageError, match="simulated device, or a wheel of this very commit"):
            device.choose(asked, target.installed)
    assert device.choose("auto", target.installed) == "sim"


def test_a_base_can_be_named_and_must_be_for_sim(made: Maker) -> None:
    recipe = resolve("vllm-0.1+vllm@main")
    assert recipe.overlay is not None
    assert (recipe.overlay.base.name, recipe.name[:16]) == (
        "vllm-0.1",
        "vllm-0.1+vllm@" + made.git("rev-parse", "main")[:2],
    )
    with pytest.raises(UsageError, match="simulated device only"):
        resolve("vllm-cpu-0.2+vllm@main")
    with pytest.raises(EnvironmentFileError, match="unknown environment"):
        resolve("vlm-0.1+vllm@main")


def test_tags_choose_by_ancestry_and_fit(made: Maker) -> None:
    made.git("tag", "v0.2", "main~3")  # csrc differs since
    made.git("tag", "v0.3", "main")
    recipe = resolve("vllm@main~1")
    assert recipe.overlay is not None
    assert recipe.overlay.base.name == "vllm-0.3"  # the first that has it; csrc is the same
    made.git("tag", "v0.3rc1", "main~1")
    assert bases.first_release_with(recipe.overlay.source) == "0.3"
    names._base_release.cache_clear()
    made.commit("another torch (#5)", {"requirements/cuda.txt": "torch==2.7.0\n"})
    made.git("tag", "--force", "v0.3", "main")
    again = resolve("vllm@main~2").overlay
    assert again is not None
    assert again.base.name == "vllm-0.2"  # compiled against the commit's torch, whatever csrc is


def test_without_tags_the_commits_torch_decides(made: Maker) -> None:
    made.commit("another torch (#5)", {"requirements/cuda.txt": "torch==2.7.0\n"})
    recipe = resolve("vllm@main")
    assert recipe.overlay is not None
    assert recipe.overlay.base.name == "vllm-0.3"
    assert bases.first_release_with(recipe.overlay.source) == "0.3"


def test_without_tags_the_release_after_the_commit_lends_what_it_may_need(
    made: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "pin_of", lambda package, version, dependency: "2.6.0")
    recipe = resolve("vllm@main")
    assert recipe.overlay is not None
    assert recipe.overlay.base.name == "vllm-0.3"
    assert recipe.overlay.version == f"0.3.dev2+g{made.git('rev-parse', 'main')[:7]}"  # of its own day, not of the base
    made.git("tag", "v0.3", "main")
    assert bases.reported_version(recipe.overlay.source, "0.3") == f"0.3+g{made.git('rev-parse', 'main')[:7]}"
    names._base_release.cache_clear()
    before = resolve("vllm-0.3+vllm@main~1").overlay
    assert before is not None
    assert before.version == f"0.3.dev1+g{made.git('rev-parse', 'main~1')[:7]}"


def test_missing_requirements_make_a_base_that_commits_share(made: Maker, cache: EnvironmentCache) -> None:
    more = {"requirements/common.txt": "numpy\nmsgspec >= 0.18\nzeta-x\n"}
    made.commit("needs zeta (#5)", more)
    made.commit("docs (#6)", {"docs/index.md": "more"})
    one, other = resolve("vllm@main~1"), resolve("vllm@main")
    assert one.overlay is not None
    assert other.overlay is not None
    base = cache.ensure(one.overlay.base)
    completed = overlay.completed_base(one.overlay, base)
    assert completed is not None
    assert completed == overlay.completed_base(other.overlay, base)
    assert completed.requirements[-1] == "zeta-x"
    assert completed.exclude_newer == "2025-03-06"  # the day after the requirements were changed
    assert ("vllm", RELEASE) in completed.exclude_newer_package
    first, second = cache.ensure(one), cache.ensure(other)
    assert len([each for each in cache.listing() if each.name == "vllm-0.2+requirements"]) == 1
    pth = "lib/python3.11/site-packages/000-vllm-regress-base.pth"
    assert (first.parent.parent / pth).read_text() == (second.parent.parent / pth).read_text()
    assert str(cache.place(completed)) in (first.parent.parent / pth).read_text()


def test_a_work_tree_is_known_by_its_content(made: Maker) -> None:
    clean = resolve(f"vllm@{made.place}")
    assert clean.overlay is not None
    assert clean.overlay.source.key == f"vllm@{made.git('rev-parse', 'HEAD')}"
    seen = {clean.overlay.source.key}
    for file, content in (
        ("vllm/old.py", "value = 3\n"),
        ("vllm/new_module.py", ""),
        ("requirements/common.txt", "numpy\n"),
    ):
        (made.place / file).write_text(content)
        dirty = resolve(f"vllm@{made.place}").overlay
        assert dirty is not None
        assert dirty.source.key not in seen
        seen.add(dirty.source.key)
        assert ".d" in dirty.version
    (made.place / "vllm/_C.abi3.so").write_text("built here")
    (made.place / "docs/index.md").write_text("not code")
    (made.place / "vllm/old.py").unlink()
    last = resolve(f"vllm@{made.place}").overlay
    assert last is not None
    assert [path for path, _ in last.source.files()] == [
        "vllm/__init__.py",
        "vllm/flash/utils.py",
        "vllm/new_module.py",
    ]
    (made.place / "vllm/old.py").write_text("value = 3\n")
    assert resolve(f"vllm@{made.place}").overlay.source.key in seen  # type: ignore[union-attr]


def test_bad_input_is_refused(made: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            resolve(name)

    refused("vllm@no-such-branch", "no commit 'no-such-branch'")
    refused("vllm@--all", "no commit '--all'")
    refused(f"vllm@{tmp_path}", "not a git repository")
    refused(f"vllm@{tmp_path / 'nowhere'}", "not a git repository")
    made.commit("all moved away", {"vllm/__init__.py": None})
    refused("vllm@main", "has no vllm/__init__.py: not a commit of vllm")
    refused(f"vllm@{made.place}", "has no vllm/__init__.py: not a tree of vllm")
    monkeypatch.setitem(RELEASED, "0.1", datetime.date(2025, 4, 1))
    monkeypatch.setitem(RELEASED, "0.2", datetime.date(2025, 4, 2))
    refused("vllm@main~2", "older than every release of vllm with a wheel")
    monkeypatch.delenv("VLLM_REGRESS_SOURCE_VLLM")
    monkeypatch.chdir(tmp_path)
    refused("vllm@main", "needs a clone of https://github.com/vllm-project/vllm: name one by --source")
    monkeypatch.chdir(made.place)
    made.git("reset", "--quiet", "--hard", "main~1")
    refused("vllm@main", "older than every release")  # the checkout around the working directory


def test_a_shallow_clone_says_so(made: Maker, tmp_path: Path) -> None:
    made.git("clone", "--quiet", "--depth=1", f"file://{made.place}", str(tmp_path / "shallow"))
    sources.use([str(tmp_path / "shallow")])
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


def test_a_url_is_cloned_once(made: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    sources.use([f"file://{made.place}"])
    first = resolve("vllm@main")
    made.place.rename(tmp_path / "gone")
    assert resolve("vllm@main").name == first.name
    sources.use([f"file://{tmp_path}/nowhere"])
    with pytest.raises(UsageError, match="cannot be cloned"):
        resolve("vllm@main")
    assert len(list((tmp_path / "cache" / "clones").glob("*.git"))) == 1
    assert not list((tmp_path / "cache" / "clones").glob("*.part"))


def test_nothing_that_a_configuration_names_is_run(made: Maker, tmp_path: Path, cache: EnvironmentCache) -> None:
    trap = tmp_path / "trap"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {trap}\ncat\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "filter.x.smudge", "filter.x.clean", "core.pager", "gpg.program", "diff.external"):
        made.git("config", key, str(program))
    made.git("config", "log.showSignature", "true")
    (made.place / ".git/info/attributes").write_text("*.py filter=x\n")
    hook = made.place / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(program.read_text())
    hook.chmod(0o755)
    cache.ensure(resolve("vllm@main"))
    (made.place / "vllm/old.py").write_text("value = 9\n")
    cache.ensure(resolve(f"vllm@{made.place}"))
    Repository.at(made.place).between("main~2", "main")
    assert not trap.exists()


def test_a_full_disk_leaves_nothing(made: Maker, cache: EnvironmentCache, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = resolve("vllm@main")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(overlay, "_write_metadata", full)
    with pytest.raises(BuildError, match="the disk is full"):
        cache.ensure(recipe)
    assert not cache.place(recipe).exists()
    monkeypatch.undo()


def test_the_base_stays_while_the_overlay_is_used(made: Maker, cache: EnvironmentCache) -> None:
    recipe = resolve("vllm@main")
    with cache.lease(recipe):
        held = {each.name: each for each in cache.listing()}
        assert held["vllm-0.2"].in_use
        assert not cache.remove(held["vllm-0.2"])
    assert cache.remove(held["vllm-0.2"])
    assert cache.built(recipe) is None
    with cache.lease(recipe) as python:  # the base is built again, in its old place
        assert (python.parent.parent / "lib/python3.11/site-packages/vllm/_C.abi3.so").read_text() == "library"


def test_a_grammar_package_over_any_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Maker(tmp_path / "lmfe")
    made.commit("v0.1", {"lmformatenforcer/__init__.py": "", "pyproject.toml": ""})
    made.git("tag", "v0.1")
    made.commit("fix (#2)", {"lmformatenforcer/__init__.py": "fixed = True\n"})
    sources.use([f"lm-format-enforcer={made.place}"])
    recipe = resolve("lm-format-enforcer-0.1+lm-format-enforcer@main")
    assert recipe.overlay is not None
    assert recipe.overlay.version.startswith("0.2.dev1+g")
    assert recipe.overlay.remarks == ""
    with_vllm = resolve("vllm-0.8.5-lmfe-0.10.3+lm-format-enforcer@main")
    assert with_vllm.overlay is not None
    assert with_vllm.overlay.base.name == "vllm-0.8.5-lmfe-0.10.3"


def test_environments_without_source_keep_their_places(cache: EnvironmentCache) -> None:
    """The key of an environment is its recipe's repr: what is new there would build every environment anew."""
    assert "overlay" not in repr(Recipe("vllm-1.0", ("vllm==1.0",)))


def test_a_commits_own_wheel_from_an_index_is_for_every_device(
    made: Maker, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(sources.WHEEL_INDEX, raising=False)
    with pytest.raises(UsageError, match=r"with \{commit\} in it"):
        sources.use_wheels("https://wheels.example.org/")
    sources.use_wheels("https://wheels.example.org/{commit}/")
    commit = made.git("rev-parse", "main")
    recipe = resolve("vllm@main")
    assert recipe.overlay is None
    site = "lib/python3.11/site-packages"
    cache = EnvironmentCache(tmp_path / "cache")
    (fake.folder / "version").write_text("0.2.dev7+gfffffff")
    with pytest.raises(BuildError, match=r"gave vllm 0\.2\.dev7.gfffffff, which is no build of"):
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
    (made.place / "vllm/old.py").write_text("value = 3\n")
    assert resolve(f"vllm@{made.place}").overlay is not None  # no index has the wheel of a changed tree
