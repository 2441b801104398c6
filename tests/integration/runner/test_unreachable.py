"""``--on`` with an address at which no Ray cluster answers: an error of ours within seconds, before
Ray tries."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.runner import ray_cluster
from pytest_vllm_regress.runner.ray_cluster import check_reachable, connected, leftovers

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A stand-in for Ray. Yields the addresses that it was asked to connect to."""
    tried: list[str] = []
    module = ModuleType("ray")
    module.is_initialized = lambda: False  # type: ignore[attr-defined]
    module.init = lambda where, **options: tried.append(where)  # type: ignore[attr-defined]
    module.shutdown = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    yield tried
    sys.modules.pop(f"{ray_cluster.__package__}.ray_node", None)  # it holds the stand-in


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    "form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "localhost:{}", "ray (RAY_ADDRESS)"]
)
def test_an_address_that_nobody_listens_at_is_refused_before_ray_tries(
    form: str, ray: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = form.format(closed_port())
    if form.startswith("ray ("):
        address = "ray"
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port()}")
    started = time.monotonic()
    with (
        pytest.raises(UsageError, match=rf"--on {address}: no cluster answers at .*: .*refused"),
        connected(address),
    ):
        raise AssertionError("connected")
    with pytest.raises(UsageError, match="no cluster answers at "):
        leftovers(address, remove=False)
    assert time.monotonic() - started < 30
    assert ray == []


def test_a_listener_that_says_nothing_is_no_cluster(
    ray: list[str], listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port of a dead or stopped cluster may have gone to another program."""
    monkeypatch.setattr(ray_cluster, "ANSWER_S", 0.3)
    where = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(UsageError, match=rf"no cluster answers at {where}"):
        check_reachable("ray", where)


@pytest.mark.parametrize(
    ("answer", "is_ray"),
    [(SETTINGS, True), (b"HTTP/1.1 400 Bad Request\r\n\r\n", False), (b"", False)],
)
def test_only_a_listener_that_speaks_http2_may_be_ray(
    answer: bytes, is_ray: bool, ray: list[str], listener: socket.socket
) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    where = f"127.0.0.1:{listener.getsockname()[1]}"
    if is_ray:
        check_reachable("ray", where)
    else:
        with pytest.raises(UsageError, match="no cluster answers at"):
            check_reachable("ray", where)


def test_a_name_that_is_not_resolved_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "ANSWER_S", 0.3)
    answer = threading.Event()

    def never_answers(*arguments: object, **options: object) -> None:
        answer.wait()
        raise socket.gaierror("the test is over")

    monkeypatch.setattr(socket, "getaddrinfo", never_answers)
    try:
        with pytest.raises(
            UsageError, match=r"no cluster answers at head\.example:6379: no answer within"
        ):
            check_reachable("ray", "head.example:6379")
    finally:
        answer.set()


@pytest.mark.parametrize(
    "where", ["auto", "local", "nonsense", "http://127.0.0.1:1", "host:port", "host:99999"]
)
def test_what_names_no_host_and_port_is_left_to_ray(where: str) -> None:
    check_reachable("ray", where)
