"""Requests to a server over vLLM's HTTP API, with the same methods for all versions."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import httpx

from ...errors import Unsupported, UsageError
from ...util.documents import load_json
from ...util.paths import writable_root
from ..checkpoints.adapters import Adapter, ensure_adapter
from ..checkpoints.forge import MAX_CONFIG
from ..inputs.media import noise, tensor_base64, wav
from ..inputs.messages import ChatChunk, ChatCompletion, Message, Messages, joined, whole
from ..inputs.script import NO_SCRIPTED_BEAMS, holds_script
from .transport import Exchange, Transport, error_in

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

_REPEATED_PROMPT = "asked twice, to see whether cached tokens are told; " * 6
_DIRECTORY = {"": "", "v1": "/v1", "v2": "/v2"}
_SCORING = ("score", "embed")
_TASKS = {
    "/v1/embeddings": ("embed",),
    "/classify": ("classify",),
    "/pooling": ("token_embed", "embed", "classify"),
}
_CHAT = "/v1/chat/completions"
_AUDIO = "/v1/audio/"
_SMALLEST_S = 0.1
_DEVELOPER_ROUTES = "VLLM_SERVER_DEV_MODE"


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
        return cast(ChatCompletion, self._json(self.post(_CHAT, body, timeout=timeout)))

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
        response, lines = self._post_stream(_CHAT, timeout, json=body)
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
        is_text = isinstance(prompt, str)
        path, field = ("/v1/completions", "prompt") if is_text else (_CHAT, "messages")
        response = self.post(path, {field: prompt, **search}, timeout=timeout)
        return [
            str(choice["text"] if is_text else choice["message"]["content"])
            for choice in _in_order(self._json(response)["choices"])
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


@dataclass(frozen=True)
class Ranked:
    """A ranked document: its ``index`` in the request, its ``score`` and its ``text``."""

    index: int
    score: float
    text: str


class PoolingRequests(Transport):
    """Requests to a server with a pooling task. Errors as in ``chat``, and ``Unsupported`` if this
    vLLM does not have the address, or only for other
    tasks."""

    def embed(
        self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Any
    ) -> list[list[float]]:
        """Return the vector of each text, in order. For servers with ``task="embed"``."""
        return [
            list(result["embedding"])
            for result in self._pooled("/v1/embeddings", texts, timeout, options)
        ]

    def classify(
        self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Any
    ) -> list[list[float]]:
        """Return the probability of each class for each text.

        For servers with ``task="classify"``.
        """
        return [
            list(result["probs"]) for result in self._pooled("/classify", texts, timeout, options)
        ]

    def pool(
        self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Any
    ) -> list[Any]:
        """Return the result of /pooling for each text: one vector per token with
        ``task="token_embed"``, otherwise that of the server's task."""
        return [result["data"] for result in self._pooled("/pooling", texts, timeout, options)]

    def score(
        self, text: str, others: Sequence[str], *, timeout: float | None = None, **options: Any
    ) -> list[float]:
        """Return the similarity of ``text`` and each of ``others``, in order.

        For servers with ``task="embed"`` or ``task="score"``.
        """
        body = {"text_1": text, "text_2": list(others), **options}
        data = self._request_json("/score", body, timeout, tasks=_SCORING)["data"]
        return [float(result["score"]) for result in _in_order(data)]

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        api: Literal["", "v1", "v2"] = "",
        timeout: float | None = None,
        **options: Any,
    ) -> list[Ranked]:
        """Return the documents, best first, all or ``top_n`` of them. For servers with
        ``task="score"`` or ``task="embed"``.

        ``api``: use /rerank (Jina's), /v1/rerank or /v2/rerank (Cohere's).
        """
        body = {
            "query": query,
            "documents": list(documents),
            **({} if top_n is None else {"top_n": top_n}),
            **options,
        }
        results = self._request_json(f"{_DIRECTORY[api]}/rerank", body, timeout, tasks=_SCORING)[
            "results"
        ]
        return [
            Ranked(
                int(result["index"]),
                float(result["relevance_score"]),
                str(result["document"]["text"]),
            )
            for result in results
        ]

    def _pooled(
        self, path: str, texts: str | Sequence[str], timeout: float | None, options: dict[str, Any]
    ) -> list[dict[str, Any]]:
        inputs = [texts] if isinstance(texts, str) else list(texts)
        return _in_order(
            self._request_json(path, {"input": inputs, **options}, timeout, tasks=_TASKS[path])[
                "data"
            ]
        )


def _in_order(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(data, key=lambda result: int(result["index"]))


class SoundRequests(Transport):
    """Requests to a server with ``model="speech"``."""

    def transcribe(
        self, sound: bytes, *, stream: bool = False, timeout: float | None = None, **options: Any
    ) -> str:
        """Return the text in ``sound``, a file such as ``wav`` makes, whole or joined from a
        stream.

        ``options``: ``language``, ``prompt`` (the preceding text, which may contain a script),
        ``temperature`` and so on. Errors as in ``chat``, and
        ``Unsupported`` if this vLLM does not have the address, or reads no sound files because
        packages are missing.
        """
        return self._recognize("transcriptions", sound, stream, timeout, options)

    def translate(
        self, sound: bytes, *, stream: bool = False, timeout: float | None = None, **options: Any
    ) -> str:
        """Return the text in ``sound``, translated into English.

        Options and errors as in ``transcribe``.
        """
        return self._recognize("translations", sound, stream, timeout, options)

    def _recognize(
        self,
        task: Literal["transcriptions", "translations"],
        sound: bytes,
        stream: bool,
        timeout: float | None,
        options: dict[str, Any],
    ) -> str:
        path, form = (
            _AUDIO + task,
            self._form(sound, {**options, **({"stream": True} if stream else {})}),
        )
        self.scripts.admit(options)
        if not stream:
            response = self._exchange(
                lambda: self._send("POST", path, **form),
                self._deadline("request", timeout),
            )
            self._check_supported(path, response)
            return str(self._json(response)["text"])
        response, lines = self._post_stream(path, timeout, **form)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            unstreamed = (
                response
                if response.is_error
                else httpx.Response(response.status_code, text="\n".join(lines))
            )
            self._check_supported(path, unstreamed)
            self._json(unstreamed)
            raise Unsupported(f"it streams no {task}", refused_by="this vLLM")
        choices = (choice for event in self._parse_events(lines) for choice in event["choices"])
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    def _form(self, sound: bytes, options: dict[str, Any]) -> dict[str, Any]:
        return {
            "data": {"model": self.model, **options},
            "files": {"file": ("sound.wav", sound, "audio/wav")},
        }

    def _send_smallest_sound(self, exchange: Exchange, refused: httpx.Response) -> httpx.Response:
        """Return the response to the smallest sound request if ``refused``, the response to a text,
        shows that the model only transcribes.

        Otherwise return ``refused``.
        """
        if refused.status_code != 404 and "does not support Completions" not in refused.text:
            return refused
        path, form = f"{_AUDIO}transcriptions", self._form(wav(_SMALLEST_S), {"language": "en"})
        response = exchange(lambda: self.client.post(path, timeout=None, **form))
        if response.status_code == 404:
            return refused
        self._check_supported(path, response)
        return response

    def _check_supported(self, path: str, response: httpx.Response) -> None:
        if response.status_code == 404:
            raise Unsupported(f"it serves no {path} (HTTP 404)", lacks=f"route {path}")
        if not error_in(response):
            self.sound_needs = ""  # it read the file, perhaps with torchcodec, which may be installed and still not work
        elif self.sound_needs:
            raise self._reads_no_sounds()


class MaintenanceRequests(Transport):
    """Requests for the engine as a whole.

    Sleep mode and the prefix cache use addresses that vLLM reserves for developers.
    """

    def sleep(self, level: int = 1, *, timeout: float | None = None) -> None:
        """Release the KV cache. Level 1 also moves the weights to CPU memory, level 2 discards
        them.

        The server needs ``extra={"enable_sleep_mode": True}`` and ``env={"VLLM_SERVER_DEV_MODE":
        "1"}``. Errors as in ``chat``.
        """
        self._post_route(f"/sleep?level={level}", timeout)

    def wake_up(self, *, timeout: float | None = None) -> None:
        """Restore what ``sleep`` released. Needs and errors as for ``sleep``."""
        self._post_route("/wake_up", timeout)

    def is_sleeping(self, *, timeout: float | None = None) -> bool:
        """Return whether the engine sleeps. Needs and errors as for ``sleep``."""
        self._require_routes("is_sleeping")
        return bool(self._json(self.get("/is_sleeping", timeout=timeout))["is_sleeping"])

    def reset_prefix_cache(self, *, timeout: float | None = None) -> None:
        """Forget the cached blocks of earlier prompts.

        The server needs ``env={"VLLM_SERVER_DEV_MODE": "1"}``. Errors as in ``chat``.
        """
        self._post_route("/reset_prefix_cache", timeout)

    def load_adapter(
        self,
        adapter: Adapter,
        *,
        folder: Path | None = None,
        replace: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Load a forged LoRA adapter, for requests with ``model=adapter.name``. The server needs
        ``extra={"enable_lora": True}``.

        ``folder``: write the adapter there, over what is there, and load it from there (default:
        its own folder in the cache). ``replace``: replace the loaded adapter of this name; raises
        ``Unsupported`` if this vLLM cannot. Other errors as in ``chat``.
        """
        path = ensure_adapter(adapter, self.model_path, writable_root() / "checkpoints")
        if folder is not None:
            path = Path(shutil.copytree(path, folder, dirs_exist_ok=True))
        body = {
            "lora_name": adapter.name,
            "lora_path": str(path),
            **({"load_inplace": True} if replace else {}),
        }
        response = self.post("/v1/load_lora_adapter", body, timeout=timeout)
        if replace and response.status_code == 400 and "already been loaded" in response.text:
            raise Unsupported(
                "it cannot replace a loaded adapter", refused_by="this vLLM (HTTP 400)"
            )
        self._raise_for_status(response)

    def unload_adapter(self, name: str, *, timeout: float | None = None) -> None:
        """Unload an adapter by its name. Errors as in ``chat``."""
        self._raise_for_status(
            self.post("/v1/unload_lora_adapter", {"lora_name": name}, timeout=timeout)
        )

    def _post_route(self, address: str, timeout: float | None) -> None:
        self._require_routes(address.partition("?")[0].removeprefix("/"))
        self._raise_for_status(self.post(address, {}, timeout=timeout))

    def _require_routes(self, method: str) -> None:
        if self.spec.env.get(_DEVELOPER_ROUTES) != "1":
            raise UsageError(
                f'{method} needs env={{"{_DEVELOPER_ROUTES}": "1"}}: without it vLLM does not have this address'
            )


class OpenAIClients(Transport):
    """OpenAI's own clients with the server's address and key and the deadline of requests, where the
    package is installed beside the tests."""

    _blocking: OpenAI | None = None

    @property
    def openai(self) -> OpenAI:
        """``openai.OpenAI`` for this server, closed with it:
        ``server.openai.chat.completions.create(model=server.model, messages=...)``.

        It never retries, because a retry would hide the failure. Its requests have no dossiers,
        and its errors are openai's own. A script that could not be followed is reported at the next
        call of the server itself. Raises ``UsageError`` if the package openai is not installed.
        """
        if self._blocking is None:
            package = _openai()
            self._blocking = package.OpenAI(
                **self._of_openai(package.DefaultHttpxClient, self.listener.guard)
            )
        return self._blocking

    @property
    def async_openai(self) -> AsyncOpenAI:
        """A new ``openai.AsyncOpenAI`` for the event loop that uses it:

        ``async with server.async_openai as client``. Otherwise like ``openai``.
        """
        package = _openai()
        client: AsyncOpenAI = package.AsyncOpenAI(
            **self._of_openai(package.DefaultAsyncHttpxClient, self.listener.guard_async)
        )
        return client

    def _of_openai(self, client: Any, guard: Any) -> dict[str, Any]:
        seconds = self._deadline("request", None).allowed_s
        http = client(trust_env=False, timeout=seconds, event_hooks={"request": [guard]})
        return {
            "base_url": self.base_url,
            "api_key": self.api_key,
            "timeout": seconds,
            "max_retries": 0,
            "http_client": http,
        }

    def _close_openai(self) -> None:
        """Close the client that ``openai`` returned."""
        if self._blocking is not None:
            self._blocking.close()
            self._blocking = None


def _openai() -> Any:
    try:
        return importlib.import_module("openai")
    except ImportError:
        raise UsageError(
            "the package openai is not installed beside the tests: pip install 'pytest-vllm-regress[openai]'"
        ) from None
