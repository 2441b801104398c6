"""``--on ray`` without an address joins a cluster of this user or root only: what a cluster answers
is unpickled."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.engines.processes.agent_client import Agent
from pytest_vllm_regress.util.rundir import RunDir
from tests.helpers.squatters import NOBODY, free_port, needs_root, squatter

pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@contextlib.contextmanager
def raylet(address: str, uid: int | None = None, option: str = "--gcs-address") -> Iterator[int]:
    """A process that looks like the raylet of the cluster at ``address``. Yields its pid."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    program = shutil.copy("/bin/sh", folder / "raylet")
    groups: list[int] | None = None if uid is None else []
    with subprocess.Popen(
        [
            program,
            "-c",
            "echo ready; read line",
            "--node_ip_address=127.0.0.1",
            f"{option}={address}",
        ],
        user=uid,
        group=uid,
        extra_groups=groups,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()
            shutil.rmtree(folder)


@needs_root
@pytest.mark.parametrize("option", ["--gcs-address", "--gcs_address"])
@pytest.mark.parametrize("variable", [None, "", "auto"])
@pytest.mark.parametrize(
    "command", [["doctor", "--on", "ray"], ["doctor", "--on", "auto"], ["matrix", "--on", "ray"]]
)
def test_a_cluster_of_another_user_is_not_joined(
    command: list[str],
    variable: str | None,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    port, received = free_port(), tmp_path / "received"
    with squatter(port, received), raylet(f"127.0.0.1:{port}", NOBODY, option) as pid:
        assert (
            cli.main([*command, *(["--env", "vllm-0.8.4"] if command[0] == "matrix" else [])]) == 2
        )
    assert received.read_bytes() == b""
    error = capsys.readouterr().err
    assert f"process {pid}" in error and f"uid {NOBODY}" in error and "RAY_ADDRESS" in error


@needs_root
def test_an_ended_cluster_whose_port_another_user_took_is_not_joined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port, received = free_port(), tmp_path / "received"
    with squatter(port, received), raylet(f"127.0.0.1:{port}"):
        assert cli.main(["doctor", "--on", "ray"]) == 2
    assert received.read_bytes() == b""
    assert f"uid {NOBODY}" in capsys.readouterr().err


def test_the_last_cluster_of_this_user_is_found() -> None:
    from pytest_vllm_regress.runner.ray_cluster import own_cluster

    with contextlib.ExitStack() as stack:
        if os.getuid() == 0:
            stack.enter_context(raylet("127.0.0.1:3", NOBODY))
        for address in ("127.0.0.1:1", "10.0.0.1:2"):
            stack.enter_context(raylet(address))
            assert own_cluster() == address


LISTENING = """
import psutil, ray
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")
ray.get(ray.remote(lambda: 1).remote())
addresses = set()
for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
    try:
        addresses |= {c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    except psutil.Error:
        pass
print("ADDRESSES", *sorted(addresses))
"""


def test_a_cluster_that_an_engine_starts_listens_on_loopback_only(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it listened on every address, and whoever connects can run code."""
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)
    variables = Agent(Path(sys.executable), run_dir).child_environment()
    done = subprocess.run(
        [sys.executable, "-c", LISTENING],
        env=variables,
        cwd=run_dir.path,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("ADDRESSES"))
    addresses = {address.removeprefix("::ffff:") for address in line.split()[1:]}
    assert addresses == {"127.0.0.1"}


def test_the_cluster_of_a_user_who_names_one_may_have_several_machines(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = Agent(Path(sys.executable), run_dir).child_environment
    name = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    monkeypatch.delenv(name, raising=False)
    assert variables()[name] == "0"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert name not in variables()
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv(name, "1")
    assert variables()[name] == "1"
