"""Chat, tokenization and other text requests to a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...errors import Unsupported, UsageError
from ...util.documents import load_json
from ..checkpoints.forge import MAX_CONFIG
from ..inputs.chat import ChatChunk, ChatCompletion, Messages
from ..inputs.embeddings import noise, tensor_base64
from ..inputs.messages import Message, joined, whole
from ..inputs.script import NO_SCRIPTED_BEAMS, holds_script
from .transport import Transport

_REPEATED_PROMPT = "asked twice, to see whether cached tokens are told; " * 6


class TextRequests(Transport):
    """Requests for text, and for the tokens of text."""

    _reports_cached = False

    def chat(
        self, messages: Messages, *, timeout: float | None = None, **options: Any
    ) -> ChatCompletion:
        """Return the JSON of a chat completion.

        Raises ``RemoteError`` with the body for an HTTP error, from 500 on also with the end of the
        log.
        """
        body = {"model": self.model, "messages": messages, **options}
        return cast(
            ChatCompletion, self._json(self.post("/v1/chat/completions", body, timeout=timeout))
        )

    def stream_chat(
        self, messages: Messages, *, timeout: float | None = None, **options: Any
    ) -> list[ChatChunk]:
        """Return the chunks of a streamed chat completion.

        Raises ``RemoteError`` if the stream contains an error or does not end with ``[DONE]``.
        """
        self.scripts.admit(messages)
        body = self.schemas.apply(
            {"model": self.model, "messages": messages, "stream": True, **options}
        )
        response, lines = self._post_stream("/v1/chat/completions", timeout, json=body)
        self._raise_for_status(response)
        return cast(list[ChatChunk], self._parse_events(lines))

    def answers(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        timeout: float | None = None,
        **options: Any,
    ) -> tuple[Message, ...]:
        """Return the choices of a chat completion, whole or joined from a stream, in the same form
        for every version.

        ``options``: ``tools``, ``tool_choice``, ``n``, ``max_tokens`` and so on. Errors as in
        ``chat`` and ``stream_chat``.
        """
        if stream:
            return joined(self.stream_chat(messages, timeout=timeout, **options))
        return whole(self.chat(messages, timeout=timeout, **options))

    def respond(
        self, prompt: str | Messages, *, timeout: float | None = None, **options: Any
    ) -> dict[str, Any]:
        """Return the JSON of ``/v1/responses``.

        Raises ``Unsupported`` if this vLLM does not have it; other errors as in ``chat``.
        """
        return self._request_json("/v1/responses", {"input": prompt, **options}, timeout)

    def beam_search(
        self,
        prompt: str | Messages,
        *,
        beam_width: int,
        max_tokens: int,
        timeout: float | None = None,
        **options: Any,
    ) -> list[str]:
        """Return the texts of the best beams, best first, for a completion or for the next message
        of a conversation.

        ``options`` of the request. Errors as in ``chat``, and ``UsageError`` for a script, which
        beams cannot follow.
        """
        if holds_script(prompt):
            raise UsageError(NO_SCRIPTED_BEAMS)
        search = {
            "model": self.model,
            "use_beam_search": True,
            "n": beam_width,
            "max_tokens": max_tokens,
            **options,
        }
        if isinstance(prompt, str):
            response = self.post("/v1/completions", {"prompt": prompt, **search}, timeout=timeout)
        else:
            response = self.post(
                "/v1/chat/completions", {"messages": prompt, **search}, timeout=timeout
            )
        choices = sorted(self._json(response)["choices"], key=lambda choice: int(choice["index"]))
        return [
            str(choice["text"] if isinstance(prompt, str) else choice["message"]["content"])
            for choice in choices
        ]

    def cached_tokens(self, prompt: str, *, timeout: float | None = None, **options: Any) -> int:
        """Return how many of the prompt's tokens came from the prefix cache.

        The server needs ``server_options={"enable_prompt_tokens_details": True}``. ``options`` of
        the completion. Errors as in ``chat``, and
        ``Unsupported`` if a repeated prompt shows no cached tokens: some versions never report
        them.
        """
        if self.spec.server_options.get("enable_prompt_tokens_details") is not True:
            raise UsageError(
                'cached_tokens needs server_options={"enable_prompt_tokens_details": True}'
            )

        def count(body: Mapping[str, Any]) -> int:
            response = self.post(
                "/v1/completions", {"model": self.model, "max_tokens": 1, **body}, timeout=timeout
            )
            return int(
                (self._json(response)["usage"].get("prompt_tokens_details") or {}).get(
                    "cached_tokens"
                )
                or 0
            )

        if not self._reports_cached and not any(
            count({"prompt": _REPEATED_PROMPT}) for _ in range(2)
        ):
            raise Unsupported(
                "it does not report cached tokens, or has no prefix cache", refused_by="this vLLM"
            )
        self._reports_cached = True
        return count({"prompt": prompt, **options})

    def tokenize(
        self, prompt: str | Messages, *, timeout: float | None = None, **options: Any
    ) -> list[int]:
        """Return the tokens of a text, or of a conversation with the chat template applied."""
        body = {"prompt" if isinstance(prompt, str) else "messages": prompt, **options}
        return list(self._request_json("/tokenize", body, timeout)["tokens"])

    def detokenize(
        self, tokens: Sequence[int], *, timeout: float | None = None, **options: Any
    ) -> str:
        """Return the text of tokens."""
        return str(
            self._request_json("/detokenize", {"tokens": list(tokens), **options}, timeout)[
                "prompt"
            ]
        )

    def prompt_embeds(self, length: int, *, seed: int = 0) -> str:
        """Return normal noise for ``length`` tokens, as the value of ``prompt_embeds`` in a body
        for /v1/completions. Equal seeds give equal noise.

        The server needs ``extra={"enable_prompt_embeds": True}``. ``tensor_base64`` makes such a
        value from rows of numbers.
        """
        config = load_json(self.model_path / "config.json", MAX_CONFIG)
        width = int((config.get("text_config") or config)["hidden_size"])
        return tensor_base64(noise(length, width, seed=seed))
