"""Requests to a target process and their replies, as frames over a socket. The agent and every
child are asked through this module.

A failed reply is decoded and masked once (``RemoteFailure.decode``); the value of a
successful reply belongs to the caller and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...target_site.vllm_regress_target.protocol import (
    Frame,
    FrameSocket,
    FrameTimeout,
    PeerClosed,
    ProtocolViolation,
)
from ...util.deadline import Deadline, HasDescriptor, wait_readable
from ...util.masking import mask
from .early_exit import WaitMonitor
from .failures import ChildFailures, RemoteFailure


class Channel:
    """The controller's end of the socket to one process. Not shared between threads.

    ``peer`` makes the errors to raise, after it has recorded and ended what is needed.

    ``life``: descriptors that become readable when the life of the process changes.
    ``interrupted``: a KeyboardInterrupt came while a request was under way, so that its reply is
    still owed.
    """

    def __init__(self, socket: FrameSocket, peer: ChildFailures, *life: HasDescriptor) -> None:
        self.interrupted = False
        self._socket = socket
        self._peer = peer
        self._life = life

    def close(self) -> None:
        """Close this end of the socket."""
        self._socket.close()

    def take_fds(self, count: int) -> list[int]:
        """Return the descriptors that came with the frames received so far, oldest first."""
        return self._socket.take_fds(count)

    def post(self, frame: Frame, deadline: Deadline) -> None:
        """Send a frame without waiting for a reply.

        Raises ``FrameTimeout`` and ``PeerClosed`` like ``FrameSocket.send``.
        """
        self._socket.send(frame, timeout_s=deadline.left_s, clock=deadline.clock)

    def request(self, frame: Frame, deadline: Deadline, monitor: WaitMonitor | None = None) -> Any:
        """Send a request and return the value of its reply.

        Raises what the peer makes of a failed, missing or broken reply.
        """
        try:
            self.post(frame, deadline)
        except FrameTimeout:
            raise self._peer.hung(deadline, "the child does not read its requests") from None
        except PeerClosed:
            raise self._peer.died(deadline, "it closed its channel") from None
        try:
            return self._reply(deadline, monitor)
        except KeyboardInterrupt:
            self.interrupted = True
            raise

    def request_stop(self, deadline: Deadline, monitor: WaitMonitor) -> bool:
        """Ask the peer to shut down and wait for its reply; False when it does not read requests
        any more."""
        try:
            self.post({"op": "stop"}, deadline)
        except (FrameTimeout, PeerClosed):
            return False
        self._reply(deadline, monitor)
        return True

    def _reply(self, deadline: Deadline, monitor: WaitMonitor | None) -> Any:
        reply = self.receive(deadline, lambda frame: "ok" in frame, monitor)
        if reply["ok"]:
            return reply.get("value")
        raise self._peer.failed(RemoteFailure.decode(reply), deadline)

    def receive(
        self,
        deadline: Deadline,
        accept: Callable[[Frame], bool],
        monitor: WaitMonitor | None = None,
    ) -> Frame:
        """Return the next frame that ``accept`` takes.

        The wait ends when the peer dies, at the deadline, or when ``monitor`` ends it early.
        """
        monitor = monitor or WaitMonitor()
        while True:
            # Both are read before the channel: frames sent before the peer's end or the deadline
            # are still received.
            alive, expired = self._peer.alive, deadline.passed
            try:
                frame = self._socket.pop()
            except PeerClosed:
                raise self._peer.died(
                    deadline, "it closed its channel without sending a reply"
                ) from None
            except ProtocolViolation as violation:
                raise self._peer.garbled(deadline, mask(str(violation))) from None
            if frame is not None and accept(frame):
                return frame
            if frame is None and not alive:
                raise self._peer.died(deadline, "it ended without sending a reply")
            if expired:
                raise self._peer.hung(deadline, f"no answer within {deadline.allowed_s:g} s")
            if frame is None and not wait_readable(
                deadline, self._socket, *self._life, at_most_s=monitor.pace
            ):
                monitor.check(deadline, self._socket, *self._life)
