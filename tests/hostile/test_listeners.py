"""Programs that listen at a server's address in its place are sent nothing: not the key, not a
request."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from pytest_vllm_regress.engines.http import listeners
from pytest_vllm_regress.engines.http.listeners import NotOurServer, OwnListener
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.errors import ChildDied, DeadlineExceeded, PortTaken
from pytest_vllm_regress.util.deadline import Deadline
from tests.helpers.squatters import NOBODY, forked, free_port, needs_root, squatter
from tests.unit.engines.test_server import unconnected


async def _asynchronous(server: Server) -> Any:
    async with server.async_client() as client:
        return await client.get("/v1/models")


def _routed(server: Server) -> Any:
    with server.route_through(httpx.HTTPTransport()):
        return server.get("/v1/models")


REQUESTS: dict[str, Callable[[Server], Any]] = {
    "get": lambda server: server.get("/v1/models"),
    "post_all": lambda server: server.post_all("/v1/completions", [{}, {}]),
    "metrics": lambda server: server.metrics(),
    "routed": lambda server: _routed(server),
    "client": lambda server: server.client.get("/v1/models"),
    "async": lambda server: asyncio.run(_asynchronous(server)),
    "openai": lambda server: server.openai.models.list(),
}


def refusal(request: Callable[[Server], Any], server: Server) -> str:
    """Return the message of the error that names who holds the port.

    OpenAI's client raises an error of its own because of it.
    """
    error: BaseException | None
    try:
        answer = request(server)
    except Exception as raised:
        error = raised
    else:
        raise AssertionError(f"answered: {answer}")
    while error is not None and "is held by" not in str(error):
        error = error.__cause__ or error.__context__
    return str(error)


@pytest.fixture
def received(tmp_path: Path) -> Path:
    """The file of what a squatter was sent."""
    return tmp_path / "received"


@pytest.fixture
def port() -> int:
    return free_port()


@contextlib.contextmanager
def serving(port: int, received: Path, **options: Any) -> Iterator[Server]:
    """A server whose only process listens on ``port``."""
    with squatter(port, received, uid=None, **options) as pid:
        server = unconnected(port)
        process = psutil.Process(pid)
        server.child.processes = lambda: [process]  # type: ignore[method-assign]
        yield server


@needs_root
@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
def test_another_user_is_sent_nothing(
    host: str, request_name: str, port: int, received: Path
) -> None:
    with squatter(port, received, host=host):
        if request_name == "openai":
            pytest.importorskip("openai")
        error = refusal(REQUESTS[request_name], unconnected(port))
    assert received.read_bytes() == b""
    assert f"(uid {NOBODY})" in error and f"port {port}" in error and "run it again" in error


@pytest.mark.parametrize("request_name", REQUESTS)
def test_the_servers_own_process_is_asked(request_name: str, port: int, received: Path) -> None:
    with (
        serving(port, received) as server,
        contextlib.suppress(ValueError, AttributeError),
    ):  # the answer is not that of vLLM
        REQUESTS[request_name](server)
    assert b"Bearer key" in received.read_bytes()


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_program_that_shares_the_port_is_sent_nothing(
    request_name: str, port: int, received: Path
) -> None:
    """With SO_REUSEPORT the kernel would give it every other connection."""
    with (
        serving(port, received, shared=True) as server,
        squatter(port, received, uid=None, shared=True) as pid,
    ):
        error = refusal(REQUESTS[request_name], server)
    assert received.read_bytes() == b""
    assert f"process {pid} (" in error


@needs_root
def test_who_takes_the_port_after_the_servers_death_is_sent_nothing(
    port: int, received: Path
) -> None:
    with serving(port, received) as server:
        assert server.get("/v1/models").is_success
    before = received.read_bytes()
    with squatter(port, received), pytest.raises(PortTaken, match="nothing was sent"):
        server.get("/v1/models")
    assert received.read_bytes() == before


@needs_root
def test_a_connection_that_a_squatter_took_is_dropped(
    port: int, received: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at before the connection was made, and a squatter took the port in between."""
    monkeypatch.setattr(OwnListener, "check", lambda own: frozenset({1}))
    with squatter(port, received):
        for name in ("get", "async"):
            with pytest.raises((PortTaken, httpx.ConnectError), match="held by another program"):
                REQUESTS[name](unconnected(port))
    assert received.read_bytes() == b""


@needs_root
def test_a_connection_over_which_the_listener_changed_is_dropped(
    port: int, received: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A squatter that held the port briefly has the connection, and the server listens now."""
    monkeypatch.setattr(OwnListener, "check", lambda own: frozenset({1}))
    with (
        serving(port, received) as server,
        pytest.raises(PortTaken, match="changed during the connection"),
    ):
        server.get("/v1/models")
    assert received.read_bytes() == b""


def test_an_address_on_which_the_kernel_would_not_connect_us_does_not_count(
    port: int, received: Path
) -> None:
    """Another program on another address of the machine has the same port."""
    with squatter(port, received, host="127.0.0.2", uid=None), serving(port, received) as server:
        assert server.get("/v1/models").is_success


def _ended(deadline: Deadline) -> None:
    raise ChildDied(
        "it ended; the first error in its log: OSError: [Errno 98] Address already in use",
        phase="ready",
    )


def _hung(deadline: Deadline, why: str) -> DeadlineExceeded:
    return DeadlineExceeded(why, phase="ready")


def waiting(port: int, **spec: Any) -> Server:
    """A server that is not ready yet."""
    server = unconnected(port, **spec)
    server.child.name = "server"
    server.child.failures.hung = _hung  # type: ignore[method-assign, assignment]
    return server


@needs_root
@pytest.mark.parametrize("dies", [True, False])
def test_a_server_whose_port_is_taken_is_not_ready(port: int, received: Path, dies: bool) -> None:
    """Regression: who kept the port got the key, answered everything, and the test passed."""
    server = waiting(port)
    vars(server.child.failures).update(alive=not dies, died=lambda deadline, why: _ended(deadline))
    with (
        squatter(port, received),
        pytest.raises(PortTaken, match=rf"uid {NOBODY}.*process \d+ \(.*already in use"),
    ):
        server.wait_ready(Deadline.after("ready", 1))
    assert received.read_bytes() == b"" and server.model == ""


@needs_root
def test_a_server_that_listens_after_a_squatter_has_gone_becomes_ready(
    port: int, received: Path
) -> None:
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(squatter(port, received))
        server = waiting(port)
        left, look = iter(range(100)), server.listener.sockets

        def sockets() -> Any:
            if next(left) == 2:
                first.close()
                assert received.read_bytes() == b""
                pid = second.enter_context(squatter(port, received, uid=None))
                server.child.processes = lambda: [psutil.Process(pid)]  # type: ignore[method-assign]
            return look()

        server.listener.sockets = sockets  # type: ignore[method-assign]
        server.wait_ready(Deadline.after("ready", 10))
        assert server.model == "theirs"
    assert b"Bearer key" in received.read_bytes()


@needs_root
def test_names_of_processes_do_not_reach_the_terminal_raw(port: int, received: Path) -> None:
    with squatter(port, received, name=b"\x1b[2J\x07\n"), pytest.raises(PortTaken) as caught:
        unconnected(port).get("/")
    assert "\x1b" not in str(caught.value) and "\x07" not in str(caught.value)


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are not checked, so that only the readiness check is left."""
    monkeypatch.setattr(OwnListener, "_proves", lambda own, event, info, before: True)


@needs_root
@pytest.mark.usefixtures("unguarded")
def test_readiness_sends_nothing_to_another_user_even_over_unchecked_connections(
    port: int, received: Path
) -> None:
    with squatter(port, received), pytest.raises(PortTaken):
        waiting(port).wait_ready(Deadline.after("ready", 1))
    assert received.read_bytes() == b""


@pytest.mark.usefixtures("unguarded")
def test_readiness_sends_nothing_to_a_shared_port_even_over_unchecked_connections(
    port: int, received: Path
) -> None:
    with (
        serving(port, received, shared=True) as server,
        squatter(port, received, uid=None, shared=True),
    ):
        other = waiting(port)
        other.child.processes = server.child.processes  # type: ignore[method-assign]
        with pytest.raises(PortTaken):
            other.wait_ready(Deadline.after("ready", 1))
    assert received.read_bytes() == b""


@pytest.mark.parametrize("command_line", [None, ("vllm", "serve", "x")])
def test_a_server_is_ready_only_if_it_still_listens_after_its_answer(
    command_line: tuple[str, ...] | None, port: int, received: Path
) -> None:
    with serving(port, received) as server:
        other = waiting(port, command_line=command_line)
        other.child.processes = server.child.processes  # type: ignore[method-assign]
        listening = other.listener.check
        looks: list[frozenset[int]] = []

        def check() -> frozenset[int]:
            """Look like a server that ended with its answer: the looks that come before connections
            succeed."""
            connects = any(frame.name == "_proves" for frame in traceback.extract_stack())
            looks.append(listening())
            return looks[-1] if connects else frozenset()

        other.listener.check = check  # type: ignore[method-assign]
        with pytest.raises(DeadlineExceeded):
            other.wait_ready(Deadline.after("ready", 1))
        assert looks
        other.listener.check = listening  # type: ignore[method-assign]
        other.wait_ready(Deadline.after("ready", 60))


@needs_root
def test_the_look_itself_refuses_another_user(port: int, received: Path) -> None:
    with squatter(port, received), pytest.raises(NotOurServer, match=f"uid {NOBODY}"):
        OwnListener(port, list).check()


def test_a_program_that_shares_the_port_during_the_connection_is_sent_nothing(
    port: int, received: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look before the connection found the server's own socket alone."""
    with (
        serving(port, received, shared=True) as server,
        squatter(port, received, uid=None, shared=True),
    ):
        own, others = server.listener.sockets()
        assert len(own) == len(others) == 1
        monkeypatch.setattr(
            OwnListener, "check", lambda _: frozenset(listener.inode for listener in own)
        )
        with pytest.raises(PortTaken):
            server.get("/v1/models")
    assert received.read_bytes() == b""


def test_a_process_that_has_the_pid_of_the_servers_is_not_the_server(
    port: int, received: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(port, received) as server:
        for proven_before in (False, True):
            if proven_before:
                monkeypatch.undo()
                assert server.listener.check()
            monkeypatch.setattr(psutil.Process, "is_running", lambda process: False)
            own, others = server.listener.sockets()
            assert not own and len(others) == 1


def test_a_socket_that_the_server_gave_away_is_not_its_own(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listening:
        own = OwnListener(port, lambda: [psutil.Process()])
        assert own.check()

        def keep(ready: Callable[[], None]) -> None:
            ready()
            time.sleep(600)

        with forked(keep):
            listening.close()
            kept, others = own.sockets()
            assert not kept and len(others) == 1


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")],
)
def test_without_sock_diag_the_tables_name_the_same_listeners(
    family: socket.AddressFamily, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        socket.create_server((address, 0), family=family, reuse_port=True) as listening,
        socket.create_server((address, listening.getsockname()[1]), family=family, reuse_port=True),
    ):
        port = listening.getsockname()[1]
        asked = listeners.on_port(port)

        def no_diagnosis(family: int, port: int) -> Iterator[listeners.Listener]:
            raise OSError("unsupported")

        monkeypatch.setattr(listeners, "_asked", no_diagnosis)
        assert set(listeners.on_port(port)) == set(asked)
        assert len(asked) == 2
        assert {(listener.address, listener.uid) for listener in asked} == {(address, os.getuid())}
        assert os.fstat(listening.fileno()).st_ino in {listener.inode for listener in asked}


def test_a_kernel_that_refuses_the_question_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_SOCK_DIAG_BY_FAMILY", 99)  # no such type
    with pytest.raises(OSError, match="does not tell"):
        list(listeners._asked(socket.AF_INET, 1))
