"""The protocol between controller, agent, nanny and child: JSON lines over a stream socket.

A frame is one JSON object on one line, UTF-8, at most ``MAX_FRAME`` bytes. Descriptors are sent
along with a frame by SCM_RIGHTS. Nothing is ever unpickled.
"""

import json
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

AGENT = "agent"
"""The role of a child that is an agent itself, for another controller."""
MAX_FRAME = 64 * 1024 * 1024
_CHUNK = 65536
MAX_FDS = 250  # the kernel sends at most 253 at once
_MAX_SLEEP_S = 1.0  # the controller's clock must be read at least so often

Frame = dict[str, Any]


class ProtocolViolation(Exception):
    """The peer sent data that is not a frame: truncated, too long, not JSON, or not an object."""


class PeerClosed(Exception):
    """The peer closed its end between two frames."""


class FrameTimeout(Exception):
    """No complete frame arrived in time."""


class FrameSocket:
    """One end of a bidirectional stream of frames.

    It owns ``sock`` and must not be shared between threads.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self._buffer = bytearray()
        self._scanned = 0
        self._fds: list[int] = []

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()
        while self._fds:
            os.close(self._fds.pop())

    def send(
        self,
        frame: Frame,
        fds: Sequence[int] = (),
        *,
        timeout_s: Optional[float] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send one frame.

        Raises ``PeerClosed`` if the peer has closed its end and ``FrameTimeout`` if it does not
        read in time, by ``clock``.
        """
        data = memoryview(json.dumps(frame, separators=(",", ":")).encode() + b"\n")
        if len(data) > MAX_FRAME:
            raise ProtocolViolation(
                f"a frame of {len(data)} bytes is over the limit of {MAX_FRAME}"
            )
        until = None if timeout_s is None else clock() + timeout_s
        while data:
            try:
                if fds:
                    sent = socket.send_fds(self.sock, [data], list(fds))
                    fds = ()
                else:
                    sent = self.sock.send(data)
                data = data[sent:]
            except BlockingIOError:
                _wait(self.sock, select.POLLOUT, until, clock)
            except (BrokenPipeError, ConnectionResetError):
                raise PeerClosed("the peer no longer reads") from None

    def pop(self) -> Optional[Frame]:
        """Return the next complete frame, or None if none has arrived. Never blocks.

        Raises ``PeerClosed`` at end of file.
        """
        frame = self._take()
        while frame is None:
            try:
                data, fds, _, _ = socket.recv_fds(
                    self.sock, _CHUNK, MAX_FDS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return None
            except ConnectionResetError:
                data, fds = b"", []
            self._fds.extend(fds)
            if not data:
                if self._buffer:
                    raise ProtocolViolation(
                        f"the stream ended inside a frame: {bytes(self._buffer[:200])!r}"
                    )
                raise PeerClosed("the peer closed its end")
            self._buffer += data
            frame = self._take()
        return frame

    def receive(self, *, timeout_s: Optional[float] = None) -> Frame:
        """Wait for the next frame.

        A ``timeout_s`` of None waits for ever, which suits a process that has nothing else to do.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            frame = self.pop()
            if frame is not None:
                return frame
            _wait(self.sock, select.POLLIN, until)

    def take_fds(self, count: int) -> list[int]:
        """Return ``count`` descriptors that came with the frames read so far, oldest first."""
        if len(self._fds) < count:
            raise ProtocolViolation(f"{count} descriptors were promised, {len(self._fds)} came")
        descriptors, self._fds = self._fds[:count], self._fds[count:]
        return descriptors

    def _take(self) -> Optional[Frame]:
        end = self._buffer.find(b"\n", self._scanned)
        if end < 0:
            self._scanned = len(self._buffer)
            if len(self._buffer) > MAX_FRAME:
                raise ProtocolViolation(f"a frame is over the limit of {MAX_FRAME} bytes")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._scanned = 0
        try:
            frame = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ProtocolViolation(f"not JSON ({error}): {line[:200]!r}") from None
        if not isinstance(frame, dict):
            raise ProtocolViolation(f"not a JSON object: {line[:200]!r}")
        return frame


def _wait(
    sock: socket.socket,
    event: int,
    until: Optional[float],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    poll = select.poll()
    poll.register(sock, event)
    while True:
        left_s = None if until is None else until - clock()
        if poll.poll(None if left_s is None else max(0.0, min(left_s, _MAX_SLEEP_S)) * 1000):
            return
        if left_s is not None and left_s <= 0:
            raise FrameTimeout("nothing moved in time")
