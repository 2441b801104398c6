"""Every reader of files reads or rejects hostile content, in time and memory proportional to the
file's length."""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_vllm_regress.answers.audit.package_lists import read_list
from pytest_vllm_regress.answers.audit.target import read_target
from pytest_vllm_regress.cases import results
from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cases.proofs import impostors, proof
from pytest_vllm_regress.cases.proofs.fingerprint import code_fingerprint
from pytest_vllm_regress.engines.checkpoints.forge import architectures_of
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.install import ABOUT, about
from pytest_vllm_regress.environments.installed import open_environment
from pytest_vllm_regress.environments.locks import read_lock
from pytest_vllm_regress.environments.recipes import load
from pytest_vllm_regress.errors import RegressError
from pytest_vllm_regress.fuzz.hunter import load as load_finding
from pytest_vllm_regress.fuzz.schemas import corpus
from pytest_vllm_regress.history.candidates import open_results
from pytest_vllm_regress.history.watch import SeenReleases
from pytest_vllm_regress.surveys.conformance import open_runs, read_known
from pytest_vllm_regress.surveys.drift_record import open_drifts
from pytest_vllm_regress.surveys.states.measure import open_states
from pytest_vllm_regress.util import rundir

cheap = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=25,
)


def marker(path: Path) -> None:
    """Put the file where the cache stores information about an environment, and read it."""
    folder = path.parent / "environments" / "x"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vllm-regress.json").write_bytes(path.read_bytes())
    EnvironmentCache(path.parent).listing()


def environment(path: Path) -> None:
    """Use the file as settings, path file and metadata of a virtual environment, and read it."""
    site = path.parent / "env" / "lib" / "python3.11" / "site-packages"
    (site / "a.dist-info").mkdir(parents=True, exist_ok=True)
    for file in (
        path.parent / "env" / "pyvenv.cfg",
        site / "a.pth",
        site / "a.dist-info" / "METADATA",
    ):
        file.write_bytes(path.read_bytes())
    open_environment(path.parent / "env").imported()
    read_target(str(path.parent / "env"))


def checkpoint(path: Path) -> None:
    """Use the file as a checkpoint's configuration, and read it."""
    (path.parent / "config.json").write_bytes(path.read_bytes())
    architectures_of(str(path.parent))


def overlay(path: Path) -> None:
    """Use the file as an overlay's description, and read it."""
    (path.parent / "env" / "bin").mkdir(parents=True, exist_ok=True)
    (path.parent / "env" / ABOUT).write_bytes(path.read_bytes())
    about(path.parent / "env" / "bin" / "python")


def abandoned(path: Path) -> None:
    """Use the file as a run directory's owner, and read it."""
    run = path.parent / "vr-x"
    run.mkdir(exist_ok=True)
    (run / "run.json").write_bytes(path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "gettempdir", lambda: str(path.parent))
        for abandoned_run in rundir.abandoned_runs():
            abandoned_run.run.segments()


READERS: dict[str, Callable[[Path], object]] = {
    "case": load_case,
    "environments": load,
    "results": results.read_results,
    "evidence": proof.read_proof,
    "finding": load_finding,
    "corpus": lambda path: list(corpus.read(path.parent)),
    "list": read_list,
    "bisection": lambda path: open_results(["a"], path).close(),
    "watch": lambda path: SeenReleases(path).close(),
    "conformance": open_runs,
    "drift": open_drifts,
    "states": open_states,
    "cache": marker,
    "environment": environment,
    "impostors": impostors.read_impostor_runs,
    "known failures": read_known,
    "lock": read_lock,
    "checkpoint": checkpoint,
    "overlay": overlay,
    "run": abandoned,
}
SHAPES: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(int("9" * 400))
    | st.text(max_size=5)
    | st.just([]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["schema", "results", "environments", "name", "size", "a", "packages", "cells"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)
FILES = (
    st.binary(max_size=60)
    | SHAPES.map(lambda value: json.dumps(value).encode())
    | st.text(alphabet="a.[]{}=\"'\n#1-r", max_size=40).map(str.encode)
)


@pytest.mark.parametrize("name", READERS)
@given(content=FILES)
@example(content=b"[" * 20_000)
@example(content=b".".join([b"a"] * 20_000) + b" = 1")
@example(content=b"a = " + b"9" * 5000)
@example(content=b"9" * 5000)
@example(content=b"")
@cheap
def test_any_content_is_read_or_rejected_with_a_message(
    tmp_path: Path, name: str, content: bytes
) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(content)
    try:
        READERS[name](file)
    except RegressError as error:
        assert len(str(error)) < 20_000


IN_FOLDERS = {"cache", "environment", "corpus", "checkpoint", "overlay", "run"}
NOT_REGULAR: tuple[Callable[[Path], None], ...] = (
    os.mkfifo,
    lambda path: path.symlink_to("/dev/zero"),
)


@pytest.mark.parametrize("make", NOT_REGULAR, ids=["pipe", "device"])
def test_pipes_and_devices_in_a_folder_are_ignored_at_once(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    run = tmp_path / "vr-x"
    (run / "env" / "bin").mkdir(parents=True)
    for name in (
        "run.json",
        "shared-memory",
        "config.json",
        f"env/{ABOUT}",
        "test_x.py",
        "case.md",
    ):
        make(run / name)
    assert architectures_of(str(run)) == ()
    assert about(run / "env" / "bin" / "python") is None
    assert rundir.RunDir(run, "x").segments() == ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
        assert list(rundir.abandoned_runs()) == []
    with pytest.raises(RegressError):
        code_fingerprint(run)


def test_notes_of_shared_memory_name_only_regular_files_below_dev_shm(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    with tempfile.TemporaryDirectory(prefix="vr_test_", dir="/dev/shm") as folder:
        own, link, linked_folder = Path(folder, "own"), Path(folder, "link"), Path(folder, "folder")
        own.write_text("")
        link.symlink_to(victim)
        linked_folder.symlink_to(tmp_path)
        names = [
            f"/dev/shm/../..{victim}",
            f"/dev/shm/./..//..{victim}",
            f"{linked_folder}/victim",
            f"{folder}/../../..{victim}",
            f"/dev/shm{folder}/../..{victim}",
            str(link),
            str(linked_folder),
            folder,
            str(victim),
        ]
        inodes = {
            os.lstat(link).st_ino,
            os.lstat(linked_folder).st_ino,
            os.stat(folder).st_ino,
            victim.stat().st_ino,
        }
        lines = [f"{inode} {name}" for inode in sorted(inodes) for name in names]
        reused, foreign = Path(folder, "reused"), Path(folder, "foreign")
        reused.write_text("")
        foreign.write_text("")
        if os.getuid() == 0:
            os.chown(foreign, 65534, 65534)
            lines.append(f"{foreign.stat().st_ino} {foreign}")
        lines.append(f"{reused.stat().st_ino + 1} {reused}")
        (tmp_path / "shared-memory").write_text(
            "\n".join([*lines, f"{own.stat().st_ino} {own}", "x", "1 /dev/shm/\0"])
        )
        assert rundir.RunDir(tmp_path, "x").segments() == (own,)


@pytest.mark.parametrize("name", sorted(READERS.keys() - IN_FOLDERS))
def test_pipes_and_devices_are_rejected_at_once(tmp_path: Path, name: str) -> None:
    for make in NOT_REGULAR:
        file = tmp_path / "file.json"
        make(file)
        with pytest.raises(RegressError):
            READERS[name](file)
        file.unlink()


@pytest.mark.parametrize("name", ["results", "evidence", "finding", "list", "case", "environments"])
def test_time_and_memory_are_bounded_for_invalid_files(tmp_path: Path, name: str) -> None:
    """The file is invalid everywhere and has the maximum size, or one megabyte."""
    limit = {"evidence": 200_000, "case": 60_000, "environments": 300_000}.get(name, 900_000)
    toml = name in ("case", "environments")
    parts = ['{"a": [1, "x", {"b": null}]}'] * (limit // 32)
    text = (
        f"a = [{', '.join('1' for _ in range(limit // 4))}]"
        if toml
        else '{"schema": 1, "tool_version": "1", "results": [' + ", ".join(parts) + "]}"
    )
    file = tmp_path / "file.json"
    file.write_text(text)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(RegressError):
        READERS[name](file)
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
