"""Resources that an engine ran out of: measured from kernel files, and reported with the amount
that is needed."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.gpus.fit import LEAST_SHM
from pytest_vllm_regress.engines.processes.shortages import (
    FILES,
    Room,
    all_memory,
    available,
    shortage,
)
from pytest_vllm_regress.util.sizes import GIB, MIB

PLENTY = Room(8 * GIB, 8 * GIB, None, 0, FILES)


def room(**values: int) -> Room:
    return dataclasses.replace(PLENTY, **values)


def test_no_shortage_with_enough_of_everything() -> None:
    assert shortage(PLENTY, PLENTY, "RuntimeError: boom", silent=True, status=-7) == ""


@pytest.mark.parametrize(
    ("log", "more"),
    [
        ("OSError: [Errno 28] No space left on device", {}),
        ("worker died, exit code: -7", {}),
        ("Fatal Python error: Bus error", {}),
        ("", {"status": -7}),
        ("", {"silent": True}),
    ],
)
def test_a_full_dev_shm_is_named_with_what_is_needed(log: str, more: dict[str, int]) -> None:
    small = room(shm_free=3 * MIB, shm_size=64 * MIB)
    message = shortage(small, small, log, **more)  # type: ignore[arg-type]
    assert (
        "/dev/shm is full: 3 MiB of 64 MiB" in message
        and f"{LEAST_SHM // MIB} MiB" in message
        and "--shm-size" in message
    )
    assert shortage(room(shm_free=0), PLENTY, log, **more)  # type: ignore[arg-type]  # freed since by the end of the workers


def test_a_small_dev_shm_is_not_blamed_for_a_clear_error() -> None:
    small = room(shm_free=60 * MIB, shm_size=64 * MIB)
    assert shortage(small, small, "ValueError: no such model") == ""


def test_memory_of_the_container() -> None:
    message = shortage(room(oom_kills=2), room(oom_kills=3, memory_limit=2 * GIB), "")
    assert (
        "out of memory" in message and "1 of the container's" in message and "2048 MiB" in message
    )
    assert shortage(room(oom_kills=2), room(oom_kills=2, memory_limit=2 * GIB), "") == ""


def test_open_files() -> None:
    message = shortage(PLENTY, room(files=64), "OSError: [Errno 24] Too many open files: '/x'")
    assert "`ulimit -n` is 64" in message and str(FILES) in message
    assert (
        shortage(PLENTY, room(files=64), "RuntimeError: Cannot resolve 127.0.0.1", silent=True)
        == message
    )
    assert shortage(PLENTY, room(files=64), "ValueError: no such model") == ""


@pytest.mark.parametrize("space", [" ", ""])  # vLLM 0.8.1 and older had none
def test_open_files_that_vllm_only_warns_about_are_not_a_shortage(space: str) -> None:
    warned = (
        "Found ulimit of 20000 and failed to automatically increase with error current limit exceeds maximum limit. "
        f"This can cause fd limit errors like{space}`OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n\n"
    )
    assert shortage(PLENTY, room(files=20_000), f"{warned}ValueError: no such model") == ""
    assert shortage(PLENTY, room(files=20_000), f"{warned}OSError: [Errno 24] Too many open files")


@pytest.mark.parametrize(
    ("line", "folder", "limit", "events"),
    [
        ("0::/a/b", "a", "memory.max", "memory.events"),
        ("0::/gone/from/here", "", "memory.max", "memory.events"),
        ("5:memory:/a/b", "memory/a/b", "memory.limit_in_bytes", "memory.oom_control"),
    ],
    ids=["version 2", "in a namespace", "version 1"],
)
def test_limits_and_counters_are_read_from_the_control_group(
    tmp_path: Path, line: str, folder: str, limit: str, events: str
) -> None:
    own, cgroups = tmp_path / "own", tmp_path / "cgroups"
    own.write_text(f"1:cpu:/x\n{line}\n")
    place = cgroups / folder
    place.mkdir(parents=True)
    (place / limit).write_text(f"{2 * GIB}\n")
    counted = place / "b" if folder == "a" else place
    counted.mkdir(exist_ok=True)
    (counted / events).write_text("oom 5\noom_kill 4\n")
    resources = available(tmp_path, cgroups, own)
    assert (resources.memory_limit, resources.oom_kills) == (2 * GIB, 4)
    assert resources.shm_size == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize


def test_a_machine_without_figures(tmp_path: Path) -> None:
    resources = available(tmp_path / "no", tmp_path / "no", tmp_path / "no")
    assert (resources.shm_free, resources.memory_limit, resources.oom_kills) == (None, None, 0)
    assert shortage(
        resources, resources, "No space left on device", silent=True
    ) == "" and "files" in str(resources)


@pytest.mark.parametrize(
    ("content", "share"), [("1048576\n", 1048576), ("max\n", None), ("", None), (None, None)]
)
def test_memory_of_a_container(tmp_path: Path, content: str | None, share: int | None) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a\n")
    if content is not None:
        (tmp_path / "memory.max").write_text(content)
    assert all_memory(tmp_path, own) == (share or all_memory(tmp_path / "none", own))
