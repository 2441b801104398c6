"""Frames over a socket pair, case by case (tests/fuzz/test_protocol.py draws streams)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import protocol
from pytest_vllm_regress.target_site.vllm_regress_target.protocol import (
    FrameSocket,
    FrameTimeout,
    PeerClosed,
    ProtocolViolation,
)


@pytest.fixture
def ends() -> Iterator[tuple[FrameSocket, FrameSocket]]:
    left, right = map(FrameSocket, socket.socketpair())
    yield left, right
    left.close()
    right.close()


def test_pop_returns_none_without_a_frame(ends: tuple[FrameSocket, FrameSocket]) -> None:
    assert ends[0].pop() is None
    with pytest.raises(FrameTimeout):
        ends[0].receive(timeout_s=0)


def test_two_frames_may_arrive_together(ends: tuple[FrameSocket, FrameSocket]) -> None:
    ends[1].sock.sendall(b'{"a":1}\n{"b":"\xc3\xbc"}\n')
    assert (ends[0].pop(), ends[0].receive(timeout_s=0), ends[0].pop()) == (
        {"a": 1},
        {"b": "ü"},
        None,
    )


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"nonsense\n", "not JSON"),
        (b"[1]\n", "not a JSON object"),
        (b"\xff\n", "not JSON"),
        (b"[" * 50_000 + b"\n", "not JSON"),
        (b"\n", "not JSON"),
    ],
)
def test_data_that_is_not_a_frame_is_a_violation(
    ends: tuple[FrameSocket, FrameSocket], stream: bytes, words: str
) -> None:
    ends[1].sock.sendall(stream)
    with pytest.raises(ProtocolViolation, match=words):
        ends[0].pop()


def test_a_truncated_frame_is_a_violation(ends: tuple[FrameSocket, FrameSocket]) -> None:
    ends[1].sock.sendall(b'{"a":')
    ends[1].close()
    with pytest.raises(ProtocolViolation, match="ended inside a frame"):
        ends[0].pop()


def test_an_end_between_frames_is_peer_closed(ends: tuple[FrameSocket, FrameSocket]) -> None:
    ends[1].send({"a": 1})
    ends[1].close()
    assert ends[0].pop() == {"a": 1}
    with pytest.raises(PeerClosed):
        ends[0].pop()
    with pytest.raises(PeerClosed):
        ends[0].send({"a": 1})


def test_oversized_frames_are_neither_sent_nor_accepted(
    ends: tuple[FrameSocket, FrameSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MAX_FRAME", 1000)
    with pytest.raises(ProtocolViolation, match="over the limit of 1000"):
        ends[0].send({"a": "x" * 1000})
    ends[1].sock.sendall(b"x" * 2000)
    with pytest.raises(ProtocolViolation, match="over the limit of 1000"):
        ends[0].pop()


def test_a_peer_that_does_not_read_is_a_timeout(ends: tuple[FrameSocket, FrameSocket]) -> None:
    with pytest.raises(FrameTimeout):
        ends[0].send({"a": "x" * 10_000_000}, timeout_s=0)


def test_descriptors_travel_with_a_frame(ends: tuple[FrameSocket, FrameSocket]) -> None:
    read, write = os.pipe()
    ends[1].send({"fds": 1}, [write])
    os.close(write)
    assert ends[0].pop() == {"fds": 1}
    (received,) = ends[0].take_fds(1)
    os.write(received, b"through")
    assert os.read(read, 10) == b"through"
    os.close(read)
    os.close(received)
    with pytest.raises(ProtocolViolation, match="1 descriptors were promised, 0 came"):
        ends[0].take_fds(1)
