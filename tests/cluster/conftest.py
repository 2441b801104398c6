"""A Ray cluster of three nodes on this machine, with a cache and a folder for temporary files of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_vllm_regress.util.sizes import GIB, MIB

READY_S = 120.0
AROUND = dict(os.environ)
"""Before a Ray in this process puts its own there."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known when this folder is named on the command line."""
    parser.addoption(
        "--cluster-record", action="store_true", help="write what was measured to docs/records/cluster.json"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`pytest tests` runs a sample, `pytest tests/cluster` all."""
    if any("cluster" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("cluster") and not item.get_closest_marker("sample")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@dataclasses.dataclass
class Cluster:
    """Three nodes with two cores each; ``ours`` are the variables of the nodes and of drivers."""

    made: Any
    nodes: list[Any]
    ours: Mapping[str, str]

    @property
    def address(self) -> str:
        return str(self.made.address)

    def command(self, cases: Path, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pytest_vllm_regress", "--cases", str(cases), *arguments]

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """A driver: a process of its own, as users start it."""
        return subprocess.Popen(
            command, env=dict(self.ours), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, command: Sequence[str], seconds: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=dict(self.ours), capture_output=True, text=True, timeout=seconds, check=False
        )

    def raylet_above(self, pid: int) -> psutil.Process:
        """The raylet of the node that a cell's process runs on."""
        above = self.worker_above(pid).parent()
        assert above is not None
        return above

    def off_head(self, note: Path) -> list[int]:
        """The processes noted there that run on other nodes than the head."""
        head = self.made.head_node.all_processes["raylet"][0].process.pid
        found = []
        for pid in map(int, note.read_text().split() if note.exists() else ()):
            with contextlib.suppress(psutil.Error, StopIteration):
                found += [pid] if self.raylet_above(pid).pid != head else []
        return found

    def worker_above(self, pid: int) -> psutil.Process:
        """The Ray worker that holds the lifeline of the cell process (its guard) above ``pid``, which is nobody's child."""
        *_, cells = (each for each in psutil.Process(pid).parents() if "cell_process" in " ".join(each.cmdline()))
        lifeline = os.readlink(f"/proc/{cells.pid}/fd/0")
        assert lifeline.startswith("pipe:")
        workers = [worker for raylet in self.raylets() for worker in raylet.children() if worker != cells]
        return next(worker for worker in workers if lifeline in _open_files(worker.pid))

    def raylets(self) -> list[psutil.Process]:
        """Those that live."""
        found = []
        for node in (self.made.head_node, *self.nodes):
            with contextlib.suppress(psutil.Error, KeyError):
                found.append(psutil.Process(node.all_processes["raylet"][0].process.pid))
        return found

    def left(self) -> list[str]:
        """What is left of cells: processes with our tag or in our folders, and folders for temporary files."""
        folder = self.ours["TMPDIR"]
        found = [f"{each}: {sorted(file.name for file in each.rglob('*'))}" for each in Path(folder).glob("vr-*")]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if "RAY_RAYLET_PID" not in (around := process.environ()) and around.get("TMPDIR", "").startswith(
                    folder
                ):
                    line = " ".join(process.cmdline())
                    found += (
                        [f"{process.pid} {line[:200]}"]
                        if "cell_process" in line or "vllm_regress_target" in line
                        else []
                    )
        return found

    def wait_until_clean(self, seconds: float) -> None:
        """Fails with what is left when the time is over."""
        until = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left, "\n".join(left)


@pytest.fixture
def last_node() -> Mapping[str, Any]:
    """What the last node has that the others have not: arguments for Ray."""
    return {}


@pytest.fixture
def own_cache() -> bool:
    """Whether the nodes have a cache of their own; else it is the user's, with the environments that are built."""
    return True


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    last_node: Mapping[str, Any],
    own_cache: bool,
) -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    from ray.cluster_utils import Cluster as Made

    tmp_path_factory.getbasetemp()  # pytest's own place for temporary files stays what it is
    root = Path(tempfile.mkdtemp(prefix="oray-"))  # short: Ray has sockets below it
    (root / "t").mkdir()
    ours = {
        "TMPDIR": str(root / "t"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # or they start behind all else that this machine does
        **({"VLLM_REGRESS_CACHE": str(root / "cache")} if own_cache else {}),
    }
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", None)
    each = {"num_cpus": 2, "memory": 7 * GIB, "object_store_memory": 80 * MIB}
    made = Made()
    try:
        made.add_node(**each, include_dashboard=False)
        yield Cluster(made, [made.add_node(**each), made.add_node(**{**each, **last_node})], AROUND | ours)
    finally:
        made.shutdown()
        monkeypatch.undo()
        tempfile.tempdir = None
        wait_for(lambda: not _below(root), f"what ran below {root} has ended")
        shutil.rmtree(root, ignore_errors=True)


def wait_for(met: Callable[[], object], what: str, seconds: float = READY_S) -> None:
    """Until ``met`` says yes; fails where it does not in time."""
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until, what
        time.sleep(0.1)


def kill(process: psutil.Process) -> None:
    """SIGKILL, and until it has ended."""
    process.send_signal(signal.SIGKILL)
    with contextlib.suppress(psutil.Error):
        process.wait(10)


def _below(root: Path) -> list[int]:
    return [
        p.info["pid"]
        for p in psutil.process_iter(["pid", "cmdline"])
        if f"{root}/" in " ".join(p.info["cmdline"] or [])
    ]


def _open_files(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(each))
    return found
