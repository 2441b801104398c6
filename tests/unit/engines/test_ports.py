"""Port leases: one holder for each port, no ports in use, and release."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pytest_vllm_regress.engines import ports
from pytest_vllm_regress.engines.ports import HOST, lease_port
from pytest_vllm_regress.errors import RegressError


@pytest.fixture(autouse=True)
def few_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a range of four ports that nobody else has locked."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ports, "FIRST", 29990)
    monkeypatch.setattr(ports, "LAST", 29993)


def test_leases_differ_until_all_ports_are_taken() -> None:
    leases = [lease_port() for _ in range(4)]
    with pytest.raises(RegressError, match=r"no free port between 29990 and 29993"):
        lease_port()
    numbers = [lease.number for lease in leases]
    assert len(set(numbers)) == 4
    freed = leases.pop()
    freed.release()
    assert lease_port().number == freed.number
    for lease in leases:
        lease.release()


def test_a_port_in_use_is_skipped() -> None:
    first = lease_port()
    first.release()
    with socket.socket() as other:
        other.bind((HOST, first.number))
        other.listen()
        lease = lease_port()
        assert lease.number != first.number
        lease.release()


def test_a_leased_port_can_be_bound() -> None:
    lease = lease_port()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, lease.number))
    lease.release()


def test_the_next_port_cannot_be_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: it followed from the pid, so another user could bind it in advance."""
    monkeypatch.setattr(ports, "FIRST", 20000)
    numbers = set()
    for _ in range(8):
        lease = lease_port()
        numbers.add(lease.number)
        lease.release()
    assert len(numbers) > 1
