"""Frames arrive correctly however the stream is split; other bytes are a protocol violation."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.target_site.vllm_regress_target.protocol import (
    FrameSocket,
    PeerClosed,
    ProtocolViolation,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FRAMES = st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=6)


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, FrameSocket]]:
    """Yield a raw socket to write to and a ``FrameSocket`` to read from."""
    raw, end = socket.socketpair()
    framed = FrameSocket(end)
    try:
        yield raw, framed
    finally:
        raw.close()
        framed.close()


@given(FRAMES, st.data())
def test_frames_arrive_whole_and_in_order_however_they_are_split(
    frames: list[dict[str, object]], data: st.DataObject
) -> None:
    stream = b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    received = []
    with pair() as (raw, framed):
        for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            raw.sendall(stream[start:stop])
            while (frame := framed.pop()) is not None:
                received.append(frame)
    assert received == frames


@given(FRAMES)
def test_sent_frames_are_received(frames: list[dict[str, object]]) -> None:
    with pair() as (raw, framed):
        sender = FrameSocket(raw)
        for frame in frames:
            sender.send(frame)
            assert framed.pop() == frame


@given(st.binary(max_size=2000))
def test_arbitrary_bytes_are_frames_or_a_violation(stream: bytes) -> None:
    with pair() as (raw, framed):
        raw.sendall(stream)
        raw.shutdown(socket.SHUT_WR)
        try:
            while True:
                frame = framed.pop()
                assert isinstance(frame, dict)
        except PeerClosed:
            assert not stream or stream.endswith(b"\n")
        except ProtocolViolation as violation:
            assert len(str(violation)) < 2000


@given(st.integers(0, 3), st.integers(0, 3))
def test_descriptors_arrive_with_their_frame_and_are_closed(sent: int, taken: int) -> None:
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(sent)]
    with pair() as (raw, framed):
        FrameSocket(raw).send({"n": sent}, descriptors)
        assert framed.pop() == {"n": sent}
        try:
            received = framed.take_fds(taken)
            assert taken <= sent
        except ProtocolViolation:
            assert taken > sent
            received = []
        for descriptor in received:
            os.close(descriptor)
        left = list(framed._fds)
    for descriptor in descriptors:
        os.close(descriptor)
    assert not any(os.path.exists(f"/proc/self/fd/{number}") for number in left)
