"""What has arrived by the deadline counts, and nothing that arrives afterwards extends it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.engines.processes.channel import Channel
from pytest_vllm_regress.engines.processes.early_exit import Wait
from pytest_vllm_regress.errors import DeadlineExceeded
from pytest_vllm_regress.target_site.vllm_regress_target.protocol import FrameSocket
from pytest_vllm_regress.util.deadline import Deadline


def hung(deadline: Deadline, why: str) -> DeadlineExceeded:
    return DeadlineExceeded(why, phase=deadline.phase)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel to a peer that lives, and the peer's end of it."""
    own, other = socket.socketpair()
    with own, other:
        yield Channel(FrameSocket(own)), other


def receive(channel: Channel) -> Any:
    peer: Any = SimpleNamespace(alive=True, hung=hung)
    return channel.receive(Wait(Deadline.after("request", 0), peer), lambda frame: "ok" in frame)


def test_an_answer_that_has_arrived_counts_after_the_deadline(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, peer = ends
    peer.sendall(b'{"ok": true}\n')
    assert receive(channel) == {"ok": True}


@pytest.mark.parametrize("sent", [b"", b'{"ok": t', b'{"event": "ready"}\n' * 3])
def test_without_an_answer_the_deadline_is_missed(
    ends: tuple[Channel, socket.socket], sent: bytes
) -> None:
    channel, peer = ends
    peer.sendall(sent)
    with pytest.raises(DeadlineExceeded, match="no answer within 0 s"):
        receive(channel)


def test_an_interrupt_while_a_request_is_sent_is_remembered(
    ends: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer may be at work on it, and would read a request to stop only afterwards."""
    channel, peer = ends
    send = channel.socket.send

    def interrupted(*arguments: Any, **options: Any) -> None:
        send(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(channel.socket, "send", interrupted)
    wait = Wait(Deadline.after("request", 60), SimpleNamespace(alive=True, hung=hung))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        channel.request({"op": "call"}, wait)
    assert channel.interrupted
    assert peer.recv(100) == b'{"op":"call"}\n'
