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
from ...util.deadline import Deadline
from ...util.masking import mask
from .early_exit import Wait
from .failures import RemoteFailure


class Channel:
    """The controller's end of the socket to one process. Not shared between threads.

    ``interrupted``: a KeyboardInterrupt came while a request was sent or under way, so that its
    reply may still be owed.
    """

    def __init__(self, socket: FrameSocket) -> None:
        self.interrupted = False
        self.socket = socket

    def post(self, frame: Frame, deadline: Deadline) -> None:
        """Send a frame without waiting for a reply.

        Raises ``FrameTimeout`` and ``PeerClosed`` like ``FrameSocket.send``.
        """
        self.socket.send(frame, timeout_s=deadline.left_s, clock=deadline.clock)

    def request(self, frame: Frame, wait: Wait) -> Any:
        """Send a request and return the value of its reply.

        Raises what the peer of the wait makes of a failed, missing or broken reply.
        """
        try:
            try:
                self.post(frame, wait.deadline)
            except FrameTimeout:
                why = "the child does not read its requests"
                raise wait.peer.hung(wait.deadline, why) from None
            except PeerClosed:
                raise wait.peer.died(wait.deadline, "it closed its channel") from None
            return self._reply(wait)
        except KeyboardInterrupt:
            self.interrupted = True
            raise

    def request_stop(self, wait: Wait) -> bool:
        """Ask the peer to shut down and wait for its reply; False when it does not read requests
        any more."""
        try:
            self.post({"op": "stop"}, wait.deadline)
        except (FrameTimeout, PeerClosed):
            return False
        self._reply(wait)
        return True

    def _reply(self, wait: Wait) -> Any:
        reply = self.receive(wait, lambda frame: "ok" in frame)
        if reply["ok"]:
            return reply.get("value")
        raise wait.peer.failed(RemoteFailure.decode(reply), wait.deadline)

    def receive(self, wait: Wait, accept: Callable[[Frame], bool]) -> Frame:
        """Return the next frame that ``accept`` takes."""

        def accepted() -> Frame | None:
            try:
                while (frame := self.socket.pop()) is not None:
                    if accept(frame):
                        return frame
                    if wait.deadline.passed:
                        break
            except PeerClosed:
                why = "it closed its channel without sending a reply"
                raise wait.peer.died(wait.deadline, why) from None
            except ProtocolViolation as violation:
                raise wait.peer.garbled(wait.deadline, mask(str(violation))) from None
            return None

        frame = wait.until(accepted, self.socket, ended="it ended without sending a reply")
        if frame is None:
            why = f"no answer within {wait.deadline.allowed_s:g} s"
            raise wait.peer.hung(wait.deadline, why)
        return frame
