"""The command serve: its address, and how it tells that it is ready."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pytest_vllm_regress.cli import serve
from pytest_vllm_regress.errors import UsageError


@pytest.mark.parametrize(
    ("port", "address"),
    [("0", ("127.0.0.1", 0)), ("8000", ("127.0.0.1", 8000)), ("0.0.0.0:80", ("0.0.0.0", 80))],
)
def test_the_loopback_interface_is_the_default(port: str, address: tuple[str, int]) -> None:
    assert serve.address_of(port) == address


@pytest.mark.parametrize("port", ["", "http", "localhost:", "70000", "-1"])
def test_what_is_no_port_is_refused(port: str) -> None:
    with pytest.raises(UsageError, match=r"--port .*: allowed is PORT or HOST:PORT"):
        serve.address_of(port)


def test_systemd_is_told_that_the_server_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        serve.tell_systemd()
        assert channel.recv(100) == b"READY=1"
    monkeypatch.delenv("NOTIFY_SOCKET")
    serve.tell_systemd()
