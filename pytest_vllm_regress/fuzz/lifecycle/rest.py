"""What keeps requests from running: sleep and pauses, as far as the server was told and has
confirmed it."""

from __future__ import annotations

import httpx

from ...engines.server import Server

ABORT, WAIT, KEEP = "abort", "wait", "keep"
"""Modes of a pause: running requests are ended, finished first, or kept until generation is
resumed."""


class RestError(Exception):
    """A request for a rest, or for its end, was not answered with 200."""


class Rest:
    """Sleep and pauses of a server.

    Attributes:
        asleep: whether the engine sleeps. ``partly``: its weights are awake, the KV cache is not.
        paused: mode of the pause; empty without one.
    """

    def __init__(self, server: Server, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self.asleep = self.partly = False
        self.paused = ""

    @property
    def holds(self) -> bool:
        """Whether no request may run."""
        return self.asleep or bool(self.paused)

    @property
    def words(self) -> str:
        """When nothing may run."""
        if self.partly:
            return "while the KV cache is asleep"
        return "while the engine sleeps" if self.asleep else "while generation is paused"

    def sleep(self) -> bool:
        self._post("/sleep?level=1")
        self.asleep, self.partly = True, False
        return True

    def wake_weights(self) -> bool:
        self._post("/wake_up?tags=weights")
        self.partly = True
        return True

    def wake(self) -> bool:
        """Wake the engine up. Whether that ends a pause, is not documented: the server is asked."""
        self._post("/wake_up")
        self.asleep = self.partly = False
        if self.paused and self.reported("paused") is not True:
            self.paused = ""
        return True

    def pause(self, mode: str) -> bool:
        """Pause generation. Returns False if this vLLM cannot."""
        done = self._post(f"/pause?mode={mode}")
        self.paused = mode if done else self.paused
        return done

    def resume(self) -> bool:
        """Resume generation. Returns False if this vLLM cannot."""
        done = self._post("/resume")
        self.paused = "" if done else self.paused
        return done

    def lies(self) -> str:
        """Return in which way /is_sleeping or /is_paused is wrong; empty if it is right.

        A sleeping engine may count as paused, and a paused one as asleep: a pause is vLLM's sleep
        of level 0.
        """
        when = self.words if self.holds else "while the engine is awake and not paused"
        paused = bool(self.paused)
        for state, holds, other in (
            ("sleeping", self.asleep, paused),
            ("paused", paused, self.asleep),
        ):
            said = self.reported(state)
            if said is not None and said != holds and not other:
                return f"/is_{state} says {str(said).lower()} {when}"
        return ""

    def reported(self, state: str) -> bool | None:
        """Return whether the server says to be ``sleeping`` or ``paused``; None if it says neither."""
        try:
            response = self._server.client.get(f"/is_{state}", timeout=self._seconds)
            return bool(response.json()[f"is_{state}"]) if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None

    def _post(self, address: str) -> bool:
        """Return False if the server does not have the address.

        Raises ``RestError`` unless it answers 200.
        """
        try:
            response = self._server.client.post(address, json={}, timeout=self._seconds)
        except httpx.HTTPError as error:
            raise RestError(f"{type(error).__name__} after at most {self._seconds:g} s") from error
        if response.status_code not in (200, 404):
            raise RestError(f"HTTP {response.status_code}: {response.text[:200]}")
        return response.status_code == 200
