"""Resolver options, release dates and locks."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_vllm_regress.environments import locks as resolution
from pytest_vllm_regress.environments import releases as index
from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.recipes import RELEASE
from pytest_vllm_regress.errors import BuildError, BuildFailure
from tests.integration.environments.conftest import CPU_RECIPE, RECIPE, Fake


class TestWheelFolder:
    @pytest.mark.parametrize(
        ("more", "overrides"),
        [
            ((), "torch===2.13.0\n"),
            (("numpy==1.26",), "numpy==1.26\ntorch===2.13.0\n"),
            (("torch==2.12",), "torch==2.12\n"),
        ],
    )
    def test_a_recipe_without_local_builds_gets_none_from_a_wheel_folder(
        self,
        fake: Fake,
        cache: EnvironmentCache,
        monkeypatch: pytest.MonkeyPatch,
        more: tuple[str, ...],
        overrides: str,
    ) -> None:
        monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
        cache.ensure(dataclasses.replace(RECIPE, overrides=more))
        assert (fake.folder / "overrides").read_text() == overrides

    def test_without_a_wheel_folder_nothing_is_pinned_again(
        self, fake: Fake, cache: EnvironmentCache
    ) -> None:
        cache.ensure(RECIPE)
        assert not fake.calls("--target")
        assert not (fake.folder / "overrides").exists()


class TestReleaseDate:
    def test_a_release_date_is_found_and_cached(self, fake: Fake, tmp_path: Path) -> None:
        (fake.folder / "released").write_text("2025-04-15")
        assert resolution.release_date("vllm", "0.8.4") == datetime.date(2025, 4, 15)
        count = len(fake.calls())
        assert count == 1
        assert resolution.release_date("vllm", "0.8.4") == datetime.date(2025, 4, 15)
        assert len(fake.calls()) == count

    def test_a_release_that_does_not_exist(self, fake: Fake) -> None:
        (fake.folder / "released").write_text("9999-01-01")
        with pytest.raises(BuildError, match=r"vllm==9\.9\.9 cannot be found"):
            resolution.release_date("vllm", "9.9.9")

    def test_no_network_does_not_count_as_no_release(
        self, fake: Fake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unreachable(*arguments: object, **options: object) -> str:
            raise BuildError("looking: the package index cannot be reached")

        monkeypatch.setattr(uv, "run", unreachable)
        with pytest.raises(BuildError, match="cannot be reached"):
            resolution.release_date("vllm", "0.8.4")

    def test_a_derived_recipe_is_resolved_for_the_day_after_the_release(
        self, fake: Fake, cache: EnvironmentCache
    ) -> None:
        (fake.folder / "released").write_text("2025-04-15")
        recipe = dataclasses.replace(
            RECIPE,
            overrides=("xgrammar==0.1.18",),
            exclude_newer=RELEASE,
            exclude_newer_package=(("xgrammar", RELEASE), ("torch", "2025-01-01")),
        )
        cache.ensure(recipe)
        (install,) = fake.calls("install")
        assert (
            "--exclude-newer 2025-04-16 --exclude-newer-package xgrammar=2025-04-16 --exclude-newer-package torch=2025-01-01"
            in " ".join(install)
        )


class TestNewerNeeds:
    """A package that is newer than the environment's day may need others that are newer, too."""

    def test_only_what_a_newer_package_needs_is_as_of_its_day(
        self, fake: Fake, cache: EnvironmentCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(resolution, "resolved_versions", self.resolve)
        recipe = dataclasses.replace(
            RECIPE,
            overrides=("transformers==5.0.0",),
            exclude_newer="2025-04-20",
            exclude_newer_package=(("transformers", RELEASE),),
        )
        (fake.folder / "released").write_text("2026-01-26")
        cache.ensure(recipe)
        (install,) = fake.calls("install")
        assert (
            "--exclude-newer 2025-04-20 --exclude-newer-package huggingface-hub=2026-01-27 --exclude-newer-package transformers=2026-01-27"
            in " ".join(install)
        )

    def test_a_package_that_resolves_as_of_the_earlier_day_needs_nothing_newer(
        self, fake: Fake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(resolution, "resolved_versions", self.resolve)
        assert (
            resolution.newer_needs("transformers==5.0.0", "2026-01-26", "2026-01-27", "3.11") == ()
        )

    @staticmethod
    def resolve(
        requirements: list[str],
        day: datetime.date,
        python: str,
        days: Mapping[str, datetime.date] = MappingProxyType({}),
    ) -> dict[str, str]:
        if days.get("huggingface-hub", day) < datetime.date(2026, 1, 15):
            raise BuildError(
                "resolving: the requirements cannot be resolved: only huggingface-hub<=1.1.5 is available",
                BuildFailure.UNRESOLVABLE,
            )
        return {"numpy": "2", "huggingface-hub": "1.3", "transformers": "5.0.0"}


class TestNewestRelease:
    @pytest.mark.parametrize(("day", "newest"), [(27, None), (28, "1.0")])
    def test_the_newest_release_of_a_day_excludes_the_next_day(
        self, fake: Fake, day: int, newest: str | None
    ) -> None:
        (fake.folder / "released").write_text("2025-04-28")
        assert index.newest_release("vllm", datetime.date(2025, 4, day)) == newest


class TestLockText:
    PYLOCK = """
[[packages]]
name = "torch"
version = "2.13.0+cpu"
wheels = [
  {{ url = "file:///wheels/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_{machine}.whl", hashes = {{ sha256 = "{here}" }} }},
  {{ url = "file:///wheels/torch-2.13.0%2Bcpu-cp312-cp312-manylinux_2_28_{machine}.whl", hashes = {{ sha256 = "other-python" }} }},
  {{ url = "file:///wheels/torch-2.13.0%2Bcpu-cp311-cp311-win_amd64.whl", hashes = {{ sha256 = "other-platform" }} }},
  {{ url = "file:///wheels/torch-2.13.0%2Bcpu-cp311-cp311-musllinux_1_2_{machine}.whl", hashes = {{ sha256 = "other-libc" }} }},
]
sdist = {{ url = "file:///torch.tar.gz", hashes = {{ sha256 = "source" }} }}

[[packages]]
name = "old"
version = "1"
sdist = {{ url = "file:///old-1.tar.gz", hashes = {{ sha256 = "{source}" }} }}

[[packages]]
name = "stable"
version = "1"
wheels = [{{ url = "file:///stable-1-cp38-abi3-manylinux1_{machine}.manylinux2014_{machine}.whl", hashes = {{ sha256 = "{abi3}" }} }}]
"""

    def test_a_lock_has_compatible_files_and_no_url(self, fake: Fake) -> None:
        import platform

        here, source, abi3 = "1" * 64, "2" * 64, "3" * 64
        (fake.folder / "pylock").write_text(
            self.PYLOCK.format(machine=platform.machine(), here=here, source=source, abi3=abi3)
        )
        recipe = dataclasses.replace(RECIPE, constraints=("numpy<2",))
        head, _, rest = resolution.lock_text(recipe).partition("\n")
        assert recipe.fingerprint in head
        assert rest == (
            f"torch==2.13.0+cpu \\\n    --hash=sha256:{here}\nold==1 \\\n    --hash=sha256:{source}\nstable==1 \\\n    --hash=sha256:{abi3}\n"
        )
        assert (fake.folder / "constraints").read_text() == "numpy<2\n"

    def test_the_plain_lock_relaxes_to_the_index_build_and_the_local_one_does_not(
        self, fake: Fake
    ) -> None:
        (fake.folder / "pylock").write_text("packages = []")
        recipe = CPU_RECIPE
        resolution.lock_text(recipe)
        assert (fake.folder / "overrides").read_text() == "torch===2.13.0\n"
        (fake.folder / "overrides").unlink()
        resolution.lock_text(recipe, local=True)
        assert not (fake.folder / "overrides").exists()
