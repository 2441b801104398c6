"""What is asked of a server beside completions: to sleep, to wake, to forget its prefix cache; and beam search, worded once."""

from __future__ import annotations

from typing import Any

from ...dialogue.chat import Messages
from ...dialogue.script import NO_SCRIPTED_BEAMS, holds_script
from ...errors import UsageError
from .transport import Transport

_ROUTES = "VLLM_SERVER_DEV_MODE"


class UpkeepRequests(Transport):
    """What a server is asked for its engine as a whole, through the routes that vLLM keeps for developers."""

    def sleep(self, level: int = 1, *, timeout: float | None = None) -> None:
        """Give up the KV cache; level 1 moves the weights away, level 2 gives up them, too. The server needs
        ``extra={"enable_sleep_mode": True}`` and ``env={"VLLM_SERVER_DEV_MODE": "1"}``. Errors as of ``chat``."""
        self._tell(f"/sleep?level={level}", timeout)

    def wake_up(self, *, timeout: float | None = None) -> None:
        """Take back what sleeping gave up. Needs and errors as of ``sleep``."""
        self._tell("/wake_up", timeout)

    def is_sleeping(self, *, timeout: float | None = None) -> bool:
        """Whether it sleeps. Needs and errors as of ``sleep``."""
        self._need_routes("is_sleeping")
        return bool(self._json(self.get("/is_sleeping", timeout=timeout))["is_sleeping"])

    def reset_prefix_cache(self, *, timeout: float | None = None) -> None:
        """Use no block of an earlier prompt again. The server needs ``env={"VLLM_SERVER_DEV_MODE": "1"}``. Errors as of ``chat``."""
        self._tell("/reset_prefix_cache", timeout)

    def beam_search(
        self, asked: str | Messages, *, beam_width: int, max_tokens: int, timeout: float | None = None, **options: Any
    ) -> list[str]:
        """The texts of the best beams, the best first: of a completion, or of a conversation's next message.

        ``options`` of the request. Errors as of ``chat``, and ``UsageError`` for a script, which beams cannot follow.
        """
        if holds_script(asked):
            raise UsageError(NO_SCRIPTED_BEAMS)
        search = {"model": self.model, "use_beam_search": True, "n": beam_width, "max_tokens": max_tokens, **options}
        if isinstance(asked, str):
            answer = self.post("/v1/completions", {"prompt": asked, **search}, timeout=timeout)
        else:
            answer = self.post("/v1/chat/completions", {"messages": asked, **search}, timeout=timeout)
        choices = self._json(answer)["choices"]
        best_first = sorted(choices, key=lambda each: int(each["index"]))
        return [str(each["text"] if isinstance(asked, str) else each["message"]["content"]) for each in best_first]

    def _tell(self, address: str, timeout: float | None) -> None:
        self._need_routes(address.partition("?")[0].removeprefix("/"))
        self._done(self.post(address, {}, timeout=timeout))

    def _need_routes(self, method: str) -> None:
        if (_ROUTES, "1") not in self.spec.env:
            raise UsageError(f'{method} needs env={{"{_ROUTES}": "1"}}: without it vLLM serves no such address')
