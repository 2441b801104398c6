"""Differences between nodes: variables of the cluster, GPUs, a full disk, leftovers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster
from tests.cluster.matrices import LEFT_S, environments, expected, named, page, verdicts
from tests.conftest import MakeTarget
from tests.helpers.waiting_cases import variables_case, version_case

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.parametrize("last_node", [{"env_vars": {"RAY_worker_niceness": "15"}}])
def test_a_target_sees_neither_the_cluster_nor_the_harness(
    cluster: Cluster, make_target: MakeTarget, tmp_path: Path
) -> None:
    """The target also runs with its node's priority, regardless of the priority that Ray gives its
    workers."""
    reports: dict[str, list[dict[str, Any]]] = {}
    for name, where, targets in (
        ("there", ["--on", cluster.address], 3),
        ("here", ["--jobs", "1"], 1),
    ):
        folder, result = tmp_path / name, tmp_path / f"{name}.json"
        folder.mkdir()
        variables_case(tmp_path / f"cases-{name}", "one", folder)
        arguments = [
            *where,
            *named(environments(make_target, 0, targets)),
            "--out",
            str(result),
        ]
        done = cluster.run(cluster.command(tmp_path / f"cases-{name}", "matrix", *arguments))
        assert done.returncode == 0, done.stdout + done.stderr
        reports[name] = [json.loads(file.read_text()) for file in folder.iterdir()]
    assert cluster.nodes[-1].node_id[:8] in {
        cell["node"]["node"].partition("/")[2] for cell in page(tmp_path / "there.json")
    }
    (local,) = reports["here"]
    assert len(reports["there"]) == 3
    for on_node in reports["there"]:
        rays = {name for name in on_node["variables"] if name.startswith("RAY_")}
        # The agent sets these. The target's Ray keeps its files in the run directory, sends no usage
        # statistics, listens on loopback only, and starts no workers in advance.
        assert rays == {
            "RAY_TMPDIR",
            "RAY_USAGE_STATS_ENABLED",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
            "RAY_prestart_worker_first_driver",
        }
        others = {name for name in local["variables"] if not name.startswith("RAY_")}
        assert set(on_node["variables"]) - rays == others
        same = {name for name in others if name.startswith(("PYTHON", "PATH", "LD_"))}
        assert {name: on_node["variables"][name] for name in same} == {
            name: local["variables"][name] for name in same
        }
        assert cluster.address not in "".join(on_node["variables"].values())
        if os.geteuid() == 0:
            assert on_node["nice"] == local["nice"]


@pytest.mark.parametrize("last_node", [{"num_gpus": 1}])
def test_batches_on_gpus_run_where_gpus_are(
    cluster: Cluster, make_target: MakeTarget, tmp_path: Path
) -> None:
    """The GPU exists only in Ray's resources: no engine can run on it, and each result says so."""
    targets = environments(make_target, 2, 2)
    version_case(tmp_path / "cases", "case-0")
    result = tmp_path / "r.json"
    command = cluster.command(
        tmp_path / "cases",
        "matrix",
        "--on",
        cluster.address,
        *named(targets),
        "--device",
        "gpu",
        "--out",
        str(result),
    )
    done = cluster.run(command)
    cells = page(result)
    assert {cell["environment"] for cell in cells} == set(targets), done.stdout + done.stderr
    assert {cell["node"]["node"].partition("/")[2] for cell in cells} == {
        cluster.nodes[-1].node_id[:8]
    }
    assert {cell["verdict"] for cell in cells} <= {"NOT_APPLICABLE", "INCONCLUSIVE"}
    refused = cluster.run([*command, "--on", f"{cluster.address},gpus=2"])
    assert refused.returncode == 2
    assert "2 GPUs" in refused.stderr
    cluster.wait_until_clean(LEFT_S)


class TestFullDisk:
    """The cache of one node is on a file system of 64 MiB."""

    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        place = tmp_path / "small"
        place.mkdir()
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(place)], capture_output=True
        ).returncode:
            pytest.skip("mounting a file system is for root")
        yield place
        subprocess.run(["umount", "--lazy", str(place)], check=True)

    @pytest.fixture
    def last_node(self, small_disk: Path) -> Mapping[str, Any]:
        return {"env_vars": {"VLLM_REGRESS_CACHE": str(small_disk / "cache")}}

    def test_batches_run_on_other_nodes(
        self, cluster: Cluster, make_target: MakeTarget, tmp_path: Path
    ) -> None:
        targets = environments(make_target, 3, 3)
        version_case(tmp_path / "cases", "case-0")
        result = tmp_path / "r.json"
        done = cluster.run(
            cluster.command(
                tmp_path / "cases",
                "matrix",
                "--on",
                cluster.address,
                *named(targets),
                "--out",
                str(result),
            )
        )
        assert verdicts(page(result)) == expected(targets, 3, 1), done.stdout + done.stderr
        assert (
            "GiB free, but 1.0 GiB are needed; its 1 unfinished cells are sent to another node"
            in done.stdout
        )
        full = cluster.nodes[-1].node_id[:8]
        assert full not in {cell["node"]["node"].partition("/")[2] for cell in page(result)}
        cluster.wait_until_clean(LEFT_S)


def test_doctor_checks_every_node(cluster: Cluster) -> None:
    """A run that was killed on the cluster's machine is found once, and removed on request."""
    left = (
        "import os, signal; from pytest_vllm_regress.util.rundir import RunDir; "
        "print(RunDir.create().path, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    leaver = subprocess.run(
        [sys.executable, "-c", left], env=dict(cluster.variables), capture_output=True, text=True
    )
    folder = Path(leaver.stdout.strip())
    doctor = [sys.executable, "-m", "pytest_vllm_regress", "doctor", "--on", cluster.address]
    report = cluster.run([*doctor, "--format", "json"])
    (trace,) = json.loads(report.stdout)
    assert report.returncode == 1, report.stderr
    assert (trace["what"], trace["name"], trace["removed"]) == ("run directory", str(folder), False)
    assert trace["node"].startswith(cluster.nodes[0].node_ip_address)
    assert cluster.run([*doctor, "--remove"]).returncode == 0
    assert not folder.exists()
    clean = cluster.run(doctor)
    assert (clean.returncode, clean.stdout.strip()) == (0, "nothing is left behind")
