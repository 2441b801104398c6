"""A disk that fills up while a matrix runs, wherever that is noticed: the cases that it concerns are
INCONCLUSIVE, all others have their verdicts, and the table is printed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments import downloads
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.downloads import CarefulBuilds, Downloads
from pytest_vllm_regress.errors import BuildError, BuildFailure, DiskFull
from pytest_vllm_regress.runner.batch import Batch, BatchFiles, BatchUpdate, RunOptions
from pytest_vllm_regress.runner.journal import Journal
from pytest_vllm_regress.runner.progress import Progress
from pytest_vllm_regress.runner.run import RunRequest, run_batches
from pytest_vllm_regress.util import store
from pytest_vllm_regress.util.sizes import GIB
from tests.helpers.cases import CaseFile
from tests.hostile.test_choices import fake
from tests.integration.environments.conftest import RECIPE, Fake

__all__ = ["fake"]


def refusing(original: Callable[..., Any], name: str, error: OSError) -> Callable[..., Any]:
    """Return ``original``, but with an error for a path that ends with ``name``."""

    def open_or_refuse(path: Any, *arguments: Any, **options: Any) -> Any:
        if os.fspath(path).endswith(name):
            raise OSError(error.errno, error.strerror, os.fspath(path))
        return original(path, *arguments, **options)

    return open_or_refuse


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("what", ["marker", "lock", "lease"])
def test_what_an_environment_cannot_write_is_a_build_error(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    error = OSError(number, os.strerror(number))

    def full(*arguments: object, **options: object) -> None:
        raise error

    if what == "marker":
        monkeypatch.setattr(os, "fsync", full)
    elif what == "lease":
        monkeypatch.setattr(os, "open", refusing(os.open, "vllm-regress.lease", error))
    else:
        monkeypatch.setattr(FileLock, "acquire", full)
    expected = f"the disk is full.*{os.strerror(number)}"
    with pytest.raises(BuildError, match=expected) as caught:
        EnvironmentCache().ensure(RECIPE)
    assert caught.value.failure is BuildFailure.DISK_FULL


def test_after_a_full_disk_only_what_fits_is_built(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = CarefulBuilds(EnvironmentCache())
    asked: list[Sequence[str]] = []
    size = 6 * GIB

    def estimate(names: Sequence[str], cache: object) -> Downloads:
        asked.append(names)
        return Downloads(tuple(names), size, (), 10 * GIB, Path("/cache"))

    monkeypatch.setattr(downloads, "downloads", estimate)
    fake.mode("disk")
    with pytest.raises(BuildError, match="the disk is full"), builds.lease(RECIPE, print):
        pass
    assert asked == []
    calls = fake.calls()
    expected = r"not built, because the disk was full.*10 GiB are free"
    with pytest.raises(BuildError, match=expected), builds.lease(RECIPE, print):
        pass
    assert fake.calls() == calls
    fake.mode("")
    size = GIB
    with builds.lease(RECIPE, print):
        assert EnvironmentCache().built(RECIPE)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


FILLS_THE_DISK = """
import pytest
@pytest.mark.vllm_case({name!r})
def test_it(vllm_probe):
    version = vllm_probe("version")
    if version == "0.8.4" and {fills}:
        with open({filler!r}, "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
    assert version
"""
PROBE = "def version():\n    import vllm\n    return vllm.__version__\n"


@pytest.mark.parametrize("variable", ["VLLM_REGRESS_CACHE", "TMPDIR"])
def test_a_matrix_on_a_disk_that_fills_up_prints_its_table(
    affected_target: Path, fixed_target: Path, small_disk: Path, tmp_path: Path, variable: str
) -> None:
    for name, fills in (("first", False), ("second", True), ("third", False)):
        text = FILLS_THE_DISK.format(name=name, fills=fills, filler=str(small_disk / "filler"))
        files = {"probe.py": PROBE, "test_it.py": text}
        CaseFile(name, pattern="expected", affected="<0.1").write(tmp_path / "cases", files)
    (tmp_path / "tmp").mkdir()
    places = {"VLLM_REGRESS_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}
    places[variable] = str(small_disk)
    repeat = variable == "VLLM_REGRESS_CACHE"  # with the journal
    command = [sys.executable, "-m", "pytest_vllm_regress", "--cases", str(tmp_path / "cases")]
    command += ["matrix", "--jobs", "1", "--env", str(affected_target), "--env", str(fixed_target)]

    def matrix() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **places}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    done = matrix()
    print(done.stdout, done.stderr)
    assert done.returncode == (1 if repeat else 0)  # each pytest makes room in TMPDIR when it ends
    assert "Traceback" not in done.stderr
    (first,) = (line for line in done.stdout.splitlines() if line.startswith("first "))
    assert "fixed" in first
    if not repeat:
        return
    assert "INCONCLUSIVE" in done.stdout
    assert "No space left on device" in " ".join(done.stdout.split())
    (small_disk / "filler").unlink()
    again = matrix()
    print(again.stdout, again.stderr)
    assert again.returncode == 0
    assert "INCONCLUSIVE" not in again.stdout


@dataclass
class Reports:
    """An executor whose batches have all ended, and whose journal has no room from the second on."""

    monkeypatch: pytest.MonkeyPatch
    interrupted: bool

    def execute(
        self, batches: Sequence[Batch], options: RunOptions, files: BatchFiles
    ) -> Generator[BatchUpdate | None, None, None]:
        def full(path: Path, line: str, **options: object) -> None:
            raise DiskFull(f"{path}: No space left on device")

        for batch in batches:
            (case,) = batch.cases
            result = TestResult(
                case.id, "t", Verdict.FIXED, "passed", "sim", batch.environment, {}, 1.0
            )
            yield BatchUpdate(batch, RunResult((result,)))
            self.monkeypatch.setattr(store, "append_line", full)
        if self.interrupted:
            raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_journal_without_room_loses_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    monkeypatch.setattr("pytest_vllm_regress.cases.proofs.proof.lock_id", lambda name: name)
    cases = [CaseFile(name).write(tmp_path / "cases") for name in ("a", "b", "c")]
    batches = [Batch(f"env-{case.id}", (case,), {}) for case in cases]
    executor = Reports(monkeypatch, interrupted)
    journal = Journal(tmp_path / "journal", ["key"])
    outcome = run_batches(RunRequest(batches, executor, RunOptions(), Progress(), journal))
    assert outcome.interrupted is interrupted
    verdicts = {result.case_id: result.verdict for result in outcome.run.results}
    assert verdicts == dict.fromkeys("abc", Verdict.FIXED)
    notes = [text for text in outcome.run.problems if "No space left on device" in text]
    assert len(notes) == 2
    assert "the same command runs these cases again" in notes[0]
