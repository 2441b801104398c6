"""Which models may find the blocks of a prompt in the prefix cache, and why the others may not."""

from __future__ import annotations

import httpx

from ...engines.server import Server

SENTENCE = "The same prompt again, to see whether tokens of it are cached. "


class Prefixes:
    """What the prefix cache may hold of one long prompt.

    ``owner``: a model with its weights, for example ``mine, weights 2``. ``prompt``: no other
    history of this server has it.
    """

    def __init__(self, server: Server, number: float) -> None:
        self._server = server
        self.prompt = f"Story after {number:g} answers. " + SENTENCE * 4
        self._warm: set[str] = set()
        self._cleared: dict[str, str] = {}

    def clear(self, event: str) -> None:
        """Note that the server has forgotten all prompts."""
        self._cleared.update(dict.fromkeys(self._warm, event))
        self._warm.clear()

    def ask(self, model: str, owner: str, seconds: float) -> tuple[str, int]:
        """Ask with the prompt.

        Return the status, and the number of cached tokens that the answer must not have.
        """
        body = {"model": model, "prompt": self.prompt, "max_tokens": 1, "ignore_eos": True}
        try:
            response = self._server.client.post("/v1/completions", json=body, timeout=seconds)
        except httpx.HTTPError as error:
            return type(error).__name__, 0
        if response.status_code != httpx.codes.OK:
            return str(response.status_code), 0
        details = response.json().get("usage", {}).get("prompt_tokens_details") or {}
        cached = int(details.get("cached_tokens") or 0)
        wrong = 0 if owner in self._warm else cached
        self._warm.add(owner)
        return "200", wrong

    def why(self, owner: str) -> str:
        """Return why the server must not have tokens of an owner."""
        return f"after {self._cleared[owner]}" if owner in self._cleared else "of other weights"
