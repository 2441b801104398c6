"""Builds that are interrupted or killed, and builds in several processes at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.environments.cache import EnvironmentCache
from tests.helpers import ROOT
from tests.integration.environments.conftest import RECIPE, Fake

OTHER_PROCESS = """
import sys
from pathlib import Path
from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.recipes import Recipe
uv.program = lambda: sys.argv[1]
with EnvironmentCache(Path(sys.argv[2])).lease(Recipe("vllm-1.0", ("vllm==1.0", "setuptools")), progress=lambda line: print(line, flush=True)):
    print("leased", flush=True)
    sys.stdin.read()
"""
BUILDER_THREAD = """
import sys
from pathlib import Path
from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.recipes import Recipe
from pytest_vllm_regress.runner.batch import Batch, RunOptions
from pytest_vllm_regress.runner.executors import ThreadsExecutor
from pytest_vllm_regress.runner.batch import BatchFiles
from pytest_vllm_regress.util.signals import terminate_as_interrupt

def say(line):
    print(line, flush=True)

uv.program = lambda: sys.argv[1]
cache, recipe = EnvironmentCache(Path(sys.argv[2])), Recipe("vllm-1.0", ("vllm==1.0", "setuptools"))
executor = ThreadsExecutor(lambda name: cache.ensure(recipe, progress=say), 1, say, seconds=lambda case, name: 0.0)
with terminate_as_interrupt():
    for _ in executor.execute([Batch("vllm-1.0", (), {})], RunOptions(), BatchFiles(Path(sys.argv[2]) / "files")):
        pass
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(fake: Fake, tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """Start another process that leases RECIPE's environment until its standard input is closed."""

    def start(program: str = OTHER_PROCESS) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, str(fake.program), str(tmp_path / "cache")]
        environment = {
            **os.environ,
            "TMPDIR": str(tmp_path),
        }  # the leftovers of a killed build are removed after the test
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

        def end() -> None:
            family = [] if process.returncode is not None else started_by(process)
            process.kill()
            process.wait(60)
            for left in family:  # nobody ends the uv of a builder that was killed
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

        request.addfinalizer(end)
        return process

    return start


def until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.strip())
        if text in line:
            return lines
    raise AssertionError(f"{text!r} never came: {lines}")


def started_by(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def wait_for(condition: Callable[[], bool], description: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited 60 s for {description}"
        time.sleep(0.01)


class TestInterruption:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize(
        "program", [OTHER_PROCESS, BUILDER_THREAD], ids=["main thread", "builder's thread"]
    )
    def test_an_interrupt_ends_uv_and_leaves_nothing(
        self,
        fake: Fake,
        cache: EnvironmentCache,
        start: Start,
        program: str,
        number: signal.Signals,
    ) -> None:
        fake.mode("hang")
        process = start(program)
        place = cache.place(RECIPE)
        wait_for((place / "lib/python3.11/site-packages/half").exists, "the build to be half done")
        wait_for(lambda: len(started_by(process)) == 3, "the nanny, uv, and its process")
        family = started_by(process)
        process.send_signal(number)
        output = until(process, "interrupted and its half-built environment removed")
        assert len([line for line in output if "interrupted" in line]) == 1
        assert not place.exists()
        process.wait(60)
        assert psutil.wait_procs(family, 2)[1] == []

    def test_an_interrupt_ends_the_wait_for_another_build(
        self, fake: Fake, cache: EnvironmentCache, start: Start
    ) -> None:
        fake.mode("hang")
        start()
        place = cache.place(RECIPE)
        wait_for((place / "lib/python3.11/site-packages/half").exists, "the build to be half done")
        waiting = start(BUILDER_THREAD)
        until(waiting, "another process is building it")
        waiting.send_signal(signal.SIGTERM)
        waiting.wait(60)
        assert place.exists()

    def test_remains_of_a_killed_build_are_removed_at_the_next_use(
        self, fake: Fake, cache: EnvironmentCache, start: Start
    ) -> None:
        fake.mode("hang")
        process = start()
        half = cache.place(RECIPE) / "lib/python3.11/site-packages/half"
        wait_for(half.exists, "the build to be half done")
        process.kill()
        process.wait(60)
        assert cache.built(RECIPE) is None
        assert cache.listing() == ()
        fake.mode("")
        before = time.monotonic()
        python = cache.ensure(RECIPE)
        assert time.monotonic() - before < 30
        assert (python.parent.parent / "lib/python3.11/site-packages/whole").exists()
        orphans = subprocess.run(
            ["pgrep", "-f", f"{cache.place(RECIPE)}/bin/python --directory"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert orphans.stdout == ""

    def test_building_another_environment_removes_an_interrupted_build(
        self, fake: Fake, cache: EnvironmentCache
    ) -> None:
        left = cache.root / "vllm-0.1-0123456789"
        (left / "bin").mkdir(parents=True)
        cache.ensure(RECIPE)
        assert not left.exists()

    def test_sweep_removes_interrupted_builds(self, cache: EnvironmentCache) -> None:
        (cache.root / "vllm-0.1-0123456789").mkdir(parents=True)
        assert cache.sweep() == 1
        assert cache.sweep() == 0


class TestTwoProcesses:
    def test_the_second_process_waits_and_reuses_the_build(
        self, fake: Fake, cache: EnvironmentCache, start: Start
    ) -> None:
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

    def test_simultaneous_requests_build_once(self, fake: Fake, start: Start) -> None:
        fake.mode("slow")
        for process in (start(), start(), start()):
            until(process, "leased")
        assert len(fake.calls("venv")) == 1
        assert len(fake.calls("install")) == 1

    def test_an_environment_in_use_is_not_removed(
        self, fake: Fake, cache: EnvironmentCache, start: Start
    ) -> None:
        process = start()
        until(process, "leased")
        (built,) = cache.listing()
        assert built.in_use
        assert not cache.remove(built)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
        assert cache.remove(built)
        assert not built.path.exists()

    def test_a_process_that_only_looks_does_not_use_an_environment(
        self, fake: Fake, cache: EnvironmentCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        python = cache.ensure(RECIPE)
        with open(python.parents[1] / "vllm-regress.lease") as looking:

            def look_ends(seconds: float) -> None:
                fcntl.flock(looking, fcntl.LOCK_UN)

            monkeypatch.setattr(time, "sleep", look_ends)
            fcntl.flock(looking, fcntl.LOCK_EX)
            (built,) = cache.listing()
            assert not built.in_use
            fcntl.flock(looking, fcntl.LOCK_EX)
            assert cache.remove(built)

    def test_the_lease_ends_with_a_killed_process(
        self, fake: Fake, cache: EnvironmentCache, start: Start
    ) -> None:
        process = start()
        until(process, "leased")
        process.kill()
        process.wait(60)
        (built,) = cache.listing()
        assert cache.remove(built)
