"""The environment cache as a state machine: builds that fail or are killed, leases, eviction,
removal, recipes that change."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.recipes import Recipe
from pytest_vllm_regress.errors import BuildError

NAMES = st.sampled_from(["vllm-1.0", "vllm-2.0", "vllm-3.0"])
BLOCK = 64 * 1024
UTIME = os.utime
LIMIT = 5 * BLOCK  # two environments and what their folders take


class Killed(BaseException):
    """Simulates SIGKILL: nothing is cleaned up."""


class CacheMachine(RuleBasedStateMachine):
    """The model: built environments in order of use, and leases."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="test-cache-"))
        self.leases = contextlib.ExitStack()
        self.leased: list[Path] = []
        self.removing: dict[str, int] = {}
        self.fate = "fine"
        self.builds = self.uses = 0
        self.patches = contextlib.ExitStack()
        self.patches.enter_context(mock.patch("pytest_vllm_regress.environments.uv.run", self._uv))
        self.patches.enter_context(
            mock.patch("pytest_vllm_regress.environments.uv.has_wheel_folder", return_value=False)
        )
        self.patches.enter_context(
            mock.patch("pytest_vllm_regress.environments.install.usable_lock", return_value=None)
        )
        self.patches.enter_context(
            mock.patch("pytest_vllm_regress.environments.cache._end_writers")
        )
        self.patches.enter_context(
            mock.patch("pytest_vllm_regress.environments.cache.os.utime", self._use)
        )
        self.cache = EnvironmentCache(self.root, LIMIT)

    def _use(self, path: Path, *times: Any, **more: Any) -> None:
        """A clock that ticks with every use, because the file system's timestamps are too coarse."""
        self.uses += 1
        UTIME(path, *(times or [(self.uses, self.uses)]), **more)

    def _uv(self, arguments: Sequence[str | Path], **_: Any) -> str:
        """Create a venv and install one block, or produce the requested fault."""
        place = Path(arguments[-1]) if arguments[0] == "venv" else None
        if place is not None:
            self.builds += 1
            (place / "bin").mkdir(parents=True)
            (place / "bin" / "python").touch()
            (place / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
            (place / "content").write_bytes(os.urandom(BLOCK))
        elif "install" in arguments and self.fate == "fails":
            raise BuildError("no such package")
        elif "install" in arguments and self.fate == "killed":
            raise Killed
        return ""

    def _recipe(self, name: str, edition: int) -> Recipe:
        return Recipe(name, (f"vllm=={name[5:]}",), constraints=(f"x<{edition}",))

    def _build(self, recipe: Recipe) -> Path:
        if self.fate != "killed":
            return self.cache.ensure(recipe)
        with mock.patch(
            "shutil.rmtree"
        ):  # a killed process removes nothing; its lock is the kernel's to release
            return self.cache.ensure(recipe)

    @rule(
        name=NAMES,
        edition=st.integers(0, 1),
        fate=st.sampled_from(["fine", "fine", "fails", "killed"]),
    )
    def ensure(self, name: str, edition: int, fate: str) -> None:
        recipe, self.fate, before = self._recipe(name, edition), fate, self.builds
        known = self.cache.built(recipe)
        half = self.cache.place(recipe).exists() and known is None
        if known is not None or fate == "fine":
            python = self.cache.ensure(recipe)
            assert python.exists()
            assert self.builds == before + (known is None)
            assert self._whole()[-1] == self.cache.place(recipe), "the last used is the last to go"
            if known is None:
                others = [
                    environment
                    for environment in self.cache.listing()[:-1]
                    if not environment.in_use
                ]
                assert self.cache.total_size() <= LIMIT or not others, (
                    "what nobody uses is evicted before the limit is passed"
                )
        elif not (half and fate == "killed"):
            with pytest.raises(BuildError if fate == "fails" else Killed):
                self._build(recipe)
            assert self.cache.built(recipe) is None
            assert self.cache.place(recipe).exists() == (fate == "killed")
        self.fate = "fine"

    @rule(name=NAMES)
    def lease(self, name: str) -> None:
        python = self.leases.enter_context(self.cache.lease(self._recipe(name, 0)))
        self.leased.append(python)

    @rule()
    def release_device(self) -> None:
        self.leases.close()
        self.leased.clear()

    @precondition(lambda self: self.cache.listing())
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        built = data.draw(st.sampled_from(self.cache.listing()))
        in_use = built.path / "bin" / "python" in self.leased
        assert built.in_use == in_use
        assert self.cache.remove(built) is not in_use
        assert built.path.exists() == in_use

    @rule()
    def sweep(self) -> None:
        half = set(self.root.glob("environments/*/")) - set(self._whole())
        assert sorted(self.cache.unfinished()) == sorted(half)
        assert self.cache.sweep() == len(half)
        assert self.cache.unfinished() == ()

    def _whole(self) -> list[Path]:
        return [environment.path for environment in self.cache.listing()]

    @rule(name=NAMES)
    def another_cache_sees_the_same(self, name: str) -> None:
        other = EnvironmentCache(self.root, LIMIT)
        assert other.built(self._recipe(name, 0)) == self.cache.built(self._recipe(name, 0))
        assert [
            dataclasses.replace(environment, in_use=False) for environment in other.listing()
        ] == [
            dataclasses.replace(environment, in_use=False) for environment in self.cache.listing()
        ]

    @invariant()
    def what_is_leased_is_whole(self) -> None:
        assert all(python.exists() for python in self.leased)

    @invariant()
    def what_is_listed_is_whole(self) -> None:
        for environment in self.cache.listing():
            assert (environment.path / "bin" / "python").exists()
            assert environment.size >= BLOCK

    def teardown(self) -> None:
        self.leases.close()
        self.patches.close()
        shutil.rmtree(self.root)


CacheMachine.TestCase.settings = settings(deadline=None, max_examples=15, stateful_step_count=15)
TestCache = CacheMachine.TestCase
