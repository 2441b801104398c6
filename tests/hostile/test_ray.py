"""``--on ray`` without an address joins a cluster of this user or root only: what a cluster answers is unpickled."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
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
        [program, "-c", "echo ready; read line", "--node_ip_address=127.0.0.1", f"{option}={address}"],
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
@pytest.mark.parametrize("command", [["doctor", "--on", "ray"], ["doctor", "--on", "auto"], ["matrix", "--on", "ray"]])
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
        assert cli.main([*command, *(["--env", "vllm-0.8.4"] if command[0] == "matrix" else [])]) == 2
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
    from pytest_vllm_regress.runner.executors.ray_discovery import own_cluster

    with contextlib.ExitStack() as stack:
        if os.getuid() == 0:
            stack.enter_context(raylet("127.0.0.1:3", NOBODY))
        for address in ("127.0.0.1:1", "10.0.0.1:2"):
            stack.enter_context(raylet(address))
            assert own_cluster() == address
