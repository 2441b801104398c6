"""The process that holds two Ray nodes, with a stand-in for Ray: it reports the address, and ends
however its starter ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.processes.agent import TARGET_SITE

CLUSTER = """
import json, os
class Cluster:
    address = "127.0.0.2:1"
    def add_node(self, **node):
        if os.environ.get("BROKEN"):
            raise OSError("no raylet")
        if "CUDA_VISIBLE_DEVICES" in os.environ:  # as Ray does, where it leaves fewer than are asked for
            raise ValueError("Attempting to start raylet with too many GPUs")
        with open("nodes", "a") as nodes:
            nodes.write(json.dumps(node) + "\\n")
        with open(os.path.join(os.environ["RAY_TMPDIR"], "ray", "ray_current_cluster"), "w") as file:
            file.write(self.address)
"""
ENGINE = """
import json, multiprocessing.util, os, signal, sys
from vllm_regress_target.dialect import ray_clusters
variables = ray_clusters.start(3)
holder = open("/proc/self/task/{}/children".format(os.getpid())).read().split()
fork = os.fork()  # as V1's engine core, which inherits whatever this process has open
if fork == 0:
    signal.pause()
print(json.dumps([variables, int(holder[0]), fork]), flush=True)
sys.stdin.read()
multiprocessing.util._exit_function()
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command of a process that starts the nodes in ``tmp_path`` and runs until its input ends."""
    (tmp_path / "site" / "ray").mkdir(parents=True)
    (tmp_path / "site" / "ray" / "__init__.py").touch()
    (tmp_path / "site" / "ray" / "cluster_utils.py").write_text(CLUSTER)
    (tmp_path / "ray").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TARGET_SITE), str(tmp_path / "site")]))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    return [sys.executable, "-c", ENGINE]


@pytest.mark.parametrize("killed", [False, True])
def test_the_nodes_end_with_their_starter(engine: list[str], tmp_path: Path, killed: bool) -> None:
    with subprocess.Popen(
        engine, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        variables, holder, fork = json.loads(started.stdout.readline())
        held, forked = psutil.Process(holder), psutil.Process(fork)
        if killed:  # as its nanny does, with all that was forked from it
            started.kill()
            forked.kill()
    # Although the fork, where it lives, holds the other end of its input.
    assert process_tree.wait_until_gone([held], 60) == []
    process_tree.terminate([forked], grace_s=0)
    assert variables == {"RAY_ADDRESS": "127.0.0.2:1", "VLLM_HOST_IP": "127.0.0.1"}
    nodes = [json.loads(line) for line in (tmp_path / "nodes").read_text().splitlines()]
    assert [(node["node_ip_address"], node["num_gpus"]) for node in nodes] == [
        ("127.0.0.2", 3),
        ("127.0.0.1", 3),
    ]
    assert all(node["env_vars"] == {"VLLM_HOST_IP": node["node_ip_address"]} for node in nodes)
    assert not (
        tmp_path / "ray" / "ray_current_cluster"
    ).exists()  # by which another Ray would join


def test_a_ray_that_does_not_start_is_reported(
    engine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "1")
    completed = subprocess.run(
        engine, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert completed.returncode == 1
    assert "OSError: no raylet" in completed.stderr
    assert (
        "RuntimeError: a Ray cluster of two nodes could not be started: its process exited with 1"
        in completed.stderr
    )
