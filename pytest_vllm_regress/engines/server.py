"""``vllm serve`` in a child process: loopback, a random key, readiness by a real generation."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import psutil

from ..checkpoints.adapters import Adapter, ensure_adapter
from ..checkpoints.forge import MAX_CONFIG
from ..dialogue.chat import ChatChunk, ChatCompletion, Messages
from ..dialogue.embeddings import noise, tensor_base64
from ..dialogue.messages import Message, joined, whole
from ..dialogue.script import ScriptWatch
from ..errors import ChildDied, ChildError, RemoteError, Unsupported, UsageError
from ..processes import family
from ..processes.child import Child
from ..processes.leftover import Leftover
from ..util import masking
from ..util.deadline import Deadline, DeadlineFor
from ..util.documents import load_json
from ..util.paths import cache_root
from .engine import PROMPT
from .http.openai_client import OpenAIClients
from .http.pooling import PoolingRequests
from .http.sounds import SoundRequests
from .http.transport import Exchange, Send
from .http.upkeep import UpkeepRequests
from .ports import HOST, PortLease
from .spec import EngineSpec

_POLL_S = 0.1
_PROBE_S = 3.0
_TWICE = "asked twice, to see whether cached tokens are told; " * 6

_REFUSED = re.compile(
    r"VLLM_USE_V1=1 is not supported with [^\n]+?(?=\.(?:[\s;]|$))|[\w -]+ is not supported on current platform"
)
"""Why a server ended that this vLLM has in V0 only, or not on such a device."""

_LEAST: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "generate": (("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}),),
    "embed": (("/v1/embeddings", {"input": PROMPT}),),
    "token_embed": (("/pooling", {"input": PROMPT}),),
    "classify": (
        ("/classify", {"input": PROMPT}),
        ("/pooling", {"input": PROMPT}),
    ),  # up to 0.8 there is the second only
    "score": (("/score", {"text_1": PROMPT, "text_2": PROMPT}),),
}


class Server(PoolingRequests, SoundRequests, UpkeepRequests, OpenAIClients):
    """A server that answers. Tests get it from the fixture ``vllm_server``."""

    _tells_cached = False

    def chat(self, messages: Messages, *, timeout: float | None = None, **options: Any) -> ChatCompletion:
        """A chat completion's JSON. An HTTP error status is ``RemoteError`` with the body, and from 500 on with the end of the server's log."""
        body = {"model": self.model, "messages": messages, **options}
        return cast(ChatCompletion, self._json(self.post("/v1/chat/completions", body, timeout=timeout)))

    def stream_chat(self, messages: Messages, *, timeout: float | None = None, **options: Any) -> list[ChatChunk]:
        """The chunks of a streamed chat completion, in order. The stream must end with ``[DONE]``; an error in it is ``RemoteError``."""
        self.scripts.admit(messages)
        body = self.schemas.apply({"model": self.model, "messages": messages, "stream": True, **options})
        response, lines = self._streamed("/v1/chat/completions", timeout, json=body)
        self._done(response)
        return cast(list[ChatChunk], self._events(lines))

    def answers(
        self, messages: Messages, *, stream: bool = False, timeout: float | None = None, **options: Any
    ) -> tuple[Message, ...]:
        """The choices of a chat completion, whole or put together from a stream, in the same words for every version.

        ``options``: ``tools``, ``tool_choice``, ``n``, ``max_tokens`` and the like. Errors as of ``chat`` and ``stream_chat``.
        """
        if stream:
            return joined(self.stream_chat(messages, timeout=timeout, **options))
        return whole(self.chat(messages, timeout=timeout, **options))

    def respond(self, asked: str | Messages, *, timeout: float | None = None, **options: Any) -> dict[str, Any]:
        """The JSON of ``/v1/responses``. Raises ``Unsupported`` where this vLLM has no such address, else errors as ``chat``."""
        return self._asked("/v1/responses", {"input": asked, **options}, timeout)

    def cached_tokens(self, prompt: str, *, timeout: float | None = None, **options: Any) -> int:
        """How many of the prompt's tokens came from the prefix cache. The server needs ``server_options={"enable_prompt_tokens_details": True}``.

        ``options`` of the completion. Errors as of ``chat``; ``Unsupported`` where a prompt asked twice shows none: some versions never tell.
        """
        if ("enable_prompt_tokens_details", "true") not in self.spec.server_options:
            raise UsageError('cached_tokens needs server_options={"enable_prompt_tokens_details": True}')

        def count(body: Mapping[str, Any]) -> int:
            answer = self.post("/v1/completions", {"model": self.model, "max_tokens": 1, **body}, timeout=timeout)
            return int((self._json(answer)["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

        if not self._tells_cached and not (count({"prompt": _TWICE}) or count({"prompt": _TWICE})):
            raise Unsupported("it tells no cached tokens, or has no prefix cache", refused_by="this vLLM")
        self._tells_cached = True
        return count({"prompt": prompt, **options})

    def load_adapter(
        self, adapter: Adapter, *, folder: Path | None = None, replace: bool = False, timeout: float | None = None
    ) -> None:
        """Load a forged LoRA adapter: ``model=adapter.name`` asks for it. The server needs ``extra={"enable_lora": True}``. Errors as of ``chat``.

        ``folder``: it is written there, over what is there, and loaded from there (default: a folder of its own). ``replace``: in place of the loaded
        one of this name; ``Unsupported`` where this vLLM loads none in place.
        """
        path = ensure_adapter(adapter, self.model_path, cache_root() / "checkpoints")
        if folder is not None:
            path = Path(shutil.copytree(path, folder, dirs_exist_ok=True))
        body = {"lora_name": adapter.name, "lora_path": str(path), **({"load_inplace": True} if replace else {})}
        answer = self.post("/v1/load_lora_adapter", body, timeout=timeout)
        if replace and answer.status_code == 400 and "already been loaded" in answer.text:
            raise Unsupported("it loads no adapter in place of another", refused_by="this vLLM (HTTP 400)")
        self._done(answer)

    def unload_adapter(self, name: str, *, timeout: float | None = None) -> None:
        """Unload an adapter by its name. Errors as of ``chat``."""
        self._done(self.post("/v1/unload_lora_adapter", {"lora_name": name}, timeout=timeout))

    def tokenize(self, asked: str | Messages, *, timeout: float | None = None, **options: Any) -> list[int]:
        """The tokens of a text, or of a conversation under the chat template."""
        body = {"prompt" if isinstance(asked, str) else "messages": asked, **options}
        return list(self._asked("/tokenize", body, timeout)["tokens"])

    def detokenize(self, tokens: Sequence[int], *, timeout: float | None = None, **options: Any) -> str:
        """The text of tokens."""
        return str(self._asked("/detokenize", {"tokens": list(tokens), **options}, timeout)["prompt"])

    def prompt_embeds(self, length: int, *, seed: int = 0) -> str:
        """Normal noise for so many tokens, as the value of ``prompt_embeds`` in a body for /v1/completions; the same ``seed`` gives the same.

        The server needs ``extra={"enable_prompt_embeds": True}``. ``tensor_base64`` makes such a value of rows of one's own.
        """
        config = load_json(self.model_path / "config.json", MAX_CONFIG)
        width = int((config.get("text_config") or config)["hidden_size"])
        return tensor_base64(noise(length, width, seed=seed))

    def engine_processes(self) -> list[psutil.Process]:
        """The engine's processes below the API server, engine core first, then its workers; not multiprocessing's helpers."""
        return [each for each in self.child.processes() if each.pid != self.child.pid and not family.is_helper(each)]

    def check(self) -> None:
        """Prove that the server still works: one token is generated, or one prompt pooled."""
        answer = self._json(self._least(lambda send: self._exchange(send, self._deadline("request", None))))
        if not _has_content(answer):
            raise RemoteError(f"the smallest request brought nothing: {answer}", phase="request")

    def stop(self, timeout: float | None = None) -> tuple[Leftover, ...]:
        """TERM, and wait for vLLM's own shutdown; returns what it left behind (already removed)."""
        self.client.close()
        self._close_openai()
        try:
            return self.child.stop(self._deadline("stop", timeout), by_signal=True)
        finally:
            self._port.release()

    def _ready(self, deadline: Deadline) -> None:
        """Wait for a real one-token generation; /health alone says nothing about the engine."""
        self.child.expect(deadline)

        for _ in self._attempts(deadline):
            try:
                # Short reads until a server of ours answers: whoever else holds the port may never. Then patience, the engine may be slow.
                models = self.client.get("/v1/models", timeout=min(_PROBE_S, max(0.1, deadline.left_s)))
                if models.is_success:
                    self.model = models.json()["data"][0]["id"]
                    answer = self._least(lambda send: send(max(0.1, deadline.left_s)))
                    if answer.is_success and _has_content(answer.json()):
                        return
                    said = f"HTTP {answer.status_code} {masking.mask(answer.text[:2000])}"
                    raise self.child.failure(f"the first request failed: {said}", phase="ready", answer=said)
            except httpx.TransportError:
                continue
        raise self.child.hung(deadline, f"the server was not ready within {deadline.allowed_s:g} s")

    def _least(self, exchange: Exchange) -> httpx.Response:
        """The answer to the least request that only an engine which works can answer, at the first address that this vLLM has."""

        def sends(path: str, body: Mapping[str, Any]) -> Send:
            return lambda seconds: self.client.post(path, json={"model": self.model, **body}, timeout=seconds)

        *others, last = (sends(path, body) for path, body in _LEAST[self.spec.task])
        for send in others:
            answer = exchange(send)
            if answer.status_code != 404:
                return answer
        answer = exchange(last)
        return self._least_sound(exchange, answer) if self.spec.task == "generate" else answer

    def _attempts(self, deadline: Deadline) -> Iterator[None]:
        """One attempt now and then one every ``_POLL_S``; the pause ends early when the child's life changes."""
        while not deadline.passed:
            self.child.check_alive(deadline)
            self.child.check_early(deadline)
            yield
            self.child.pause(min(_POLL_S, deadline.left_s))


def _has_content(answer: Mapping[str, Any]) -> bool:
    return bool(answer.get("choices") or answer.get("data")) or "text" in answer


def start_server(
    child: Child,
    spec: EngineSpec,
    port: PortLease,
    request: Mapping[str, Any],
    deadline_for: DeadlineFor,
    scripts: ScriptWatch,
    timeout: float | None = None,
) -> Server:
    """Start the server in ``child`` and wait until it is ready; on any failure everything is ended first."""
    key = masking.register(secrets.token_hex(16))
    server = Server(child, spec, port, key, deadline_for, scripts)
    try:
        plan = child.request(
            "serve", deadline_for("start", timeout), spec=dict(request), host=HOST, port=port.number, api_key=key
        )
        server.model_path = Path(str(request["model_path"]))
        server.argv, server.notes = tuple(plan["argv"]), tuple(plan["notes"])
        server.sound_needs = str(plan["sound_needs"])
        server._ready(deadline_for("ready", timeout))
        child.take()
    except BaseException as error:
        if isinstance(error, ChildError) and not error.detail:
            error.detail = child.dossier(f"{child.name} failed to become ready")
        server.client.close()
        child.kill()
        port.release()
        refused = _REFUSED.search(str(error.args[0])) if isinstance(error, ChildDied) else None
        if refused:
            raise Unsupported(refused.group(), refused_by="this vLLM") from error
        raise
    return server
