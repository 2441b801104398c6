"""A Ray cluster of three nodes on this machine, with its own cache and temporary directory."""

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
"""The environment before Ray in this process changes it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that is known when this folder is named on the command line."""
    parser.addoption(
        "--cluster-record",
        action="store_true",
        help="write what was measured to docs/records/cluster.json",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`pytest tests` runs a sample, `pytest tests/cluster` all."""
    if any("cluster" in argument for argument in config.args):
        return
    left_out = [
        item
        for item in items
        if item.get_closest_marker("cluster") and not item.get_closest_marker("sample")
    ]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@dataclasses.dataclass
class Cluster:
    """Three nodes with two cores each.

    ``variables``: environment variables of the nodes and of drivers.
    """

    ray_cluster: Any
    nodes: list[Any]
    variables: Mapping[str, str]

    @property
    def address(self) -> str:
        return str(self.ray_cluster.address)

    def command(self, cases: Path, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pytest_vllm_regress", "--cases", str(cases), *arguments]

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start a driver in a process of its own, as users do."""
        return subprocess.Popen(
            command,
            env=dict(self.variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: Sequence[str], seconds: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=dict(self.variables),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def raylet_above(self, pid: int) -> psutil.Process:
        """Return the raylet of the node on which the process runs."""
        above = self.worker_above(pid).parent()
        assert above is not None
        return above

    def off_head(self, note: Path) -> list[int]:
        """Return those of the process ids in ``note`` that do not run on the head node."""
        head = self.ray_cluster.head_node.all_processes["raylet"][0].process.pid
        pids = []
        for pid in map(int, note.read_text().split() if note.exists() else ()):
            with contextlib.suppress(psutil.Error, StopIteration):
                pids += [pid] if self.raylet_above(pid).pid != head else []
        return pids

    def worker_above(self, pid: int) -> psutil.Process:
        """Return the Ray worker that holds the lifeline of the guard above ``pid``.

        The guard is not its child.
        """
        *_, cells = (
            process
            for process in psutil.Process(pid).parents()
            if "runner.guard" in " ".join(process.cmdline())
        )
        lifeline = os.readlink(f"/proc/{cells.pid}/fd/0")
        assert lifeline.startswith("pipe:")
        workers = [
            worker for raylet in self.raylets() for worker in raylet.children() if worker != cells
        ]
        return next(worker for worker in workers if lifeline in _open_files(worker.pid))

    def raylets(self) -> list[psutil.Process]:
        """Return the live raylets."""
        processes = []
        for node in (self.ray_cluster.head_node, *self.nodes):
            with contextlib.suppress(psutil.Error, KeyError):
                processes.append(psutil.Process(node.all_processes["raylet"][0].process.pid))
        return processes

    def left(self) -> list[str]:
        """Return what batches left: processes in our folders, and run directories."""
        folder = self.variables["TMPDIR"]
        leftovers = [
            f"{run_dir}: {sorted(file.name for file in run_dir.rglob('*'))}"
            for run_dir in Path(folder).glob("vr-*")
        ]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if "RAY_RAYLET_PID" not in (around := process.environ()) and around.get(
                    "TMPDIR", ""
                ).startswith(folder):
                    line = " ".join(process.cmdline())
                    leftovers += (
                        [f"{process.pid} {line[:200]}"]
                        if "runner.guard" in line or "vllm_regress_target" in line
                        else []
                    )
        return leftovers

    def wait_until_clean(self, seconds: float) -> None:
        """Wait until nothing is left; fail with what is left after ``seconds``."""
        until = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left, "\n".join(left)


@pytest.fixture
def last_node() -> Mapping[str, Any]:
    """Arguments for Ray that only the last node gets."""
    return {}


@pytest.fixture
def own_cache() -> bool:
    """Whether the nodes have their own cache instead of the user's with its environments."""
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

    tmp_path_factory.getbasetemp()  # pytest keeps its own directory for temporary files
    root = Path(tempfile.mkdtemp(prefix="oray-"))  # short: Ray has sockets below it
    (root / "t").mkdir()
    variables = {
        "TMPDIR": str(root / "t"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # otherwise they start with a lower priority than everything else on this machine
        **({"VLLM_REGRESS_CACHE": str(root / "cache")} if own_cache else {}),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", None)
    node_options = {"num_cpus": 2, "memory": 7 * GIB, "object_store_memory": 80 * MIB}
    ray_cluster = Made()
    try:
        ray_cluster.add_node(**node_options, include_dashboard=False)
        yield Cluster(
            ray_cluster,
            [
                ray_cluster.add_node(**node_options),
                ray_cluster.add_node(**{**node_options, **last_node}),
            ],
            AROUND | variables,
        )
    finally:
        ray_cluster.shutdown()
        monkeypatch.undo()
        tempfile.tempdir = None
        wait_for(lambda: not _below(root), f"what ran below {root} has ended")
        shutil.rmtree(root, ignore_errors=True)


def wait_for(met: Callable[[], object], description: str, seconds: float = READY_S) -> None:
    """Wait until ``met`` returns true; fail after ``seconds``."""
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until, description
        time.sleep(0.1)


def kill(process: psutil.Process) -> None:
    """Kill the process and wait until it has ended."""
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
    targets = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                targets.add(os.readlink(link))
    return targets
