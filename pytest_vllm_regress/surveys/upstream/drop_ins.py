"""``RemoteOpenAIServer`` and ``VllmRunner`` with upstream's signatures, over our servers and offline
engines: warm, supervised, with deadlines, and reused where the arguments are equal."""

from __future__ import annotations

import json
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...engines.engine import CompletionOutput, Engine, RequestOutput
from ...engines.ports import HOST
from ...engines.server import Server
from ...engines.spec import EngineSpec
from ...errors import ChildError, LimitExceeded, UsageError
from . import settings

_REQUEST_S = 600
_GENERATION = "VLLM_USE_V1"
_GENERATIONS = {"0": "V0", "1": "V1"}
_PORT = ("-p", "--port", "--host")


def _client(name: str, path: str = "") -> Callable[..., Any]:
    """Return a method that returns a new client of this class for the server, which never retries."""

    def method(self: RemoteOpenAIServer, **given: Any) -> Any:
        own = {
            "base_url": f"{self.url_root}{path}",
            "api_key": self.DUMMY_API_KEY,
            "max_retries": 0,
            "timeout": _REQUEST_S,
        }
        return pkgutil.resolve_name(name)(**{**own, **given})

    return method


class RemoteOpenAIServer:
    """A ``vllm serve`` for a test. Objects with equal arguments share a running server.

    The environment is the running interpreter if it has vLLM, else the one that
    ``VLLM_REGRESS_ENVIRONMENT`` names. On the simulated device a name of the hub is an alias of a
    forged checkpoint. ``max_wait_seconds``: deadline of the start. Arguments that set host or port
    are dropped, because the server listens on a leased port of the loopback interface.

    Raises ``ValueError`` for a port or seed that is given twice, and ``RuntimeError`` for a server
    that ends or is not ready in time; its cause is an error of this package with the log and the
    stacks.
    """

    DUMMY_API_KEY = "token-abc123"  # the server has no key unless its arguments set one
    _command: tuple[str, ...] = ()

    def __init__(
        self,
        model: str,
        vllm_serve_args: Sequence[str],
        *,
        env_dict: Mapping[str, str] | None = None,
        seed: int | None = 0,
        auto_port: bool = True,
        max_wait_seconds: float | None = None,
        override_hf_configs: Mapping[str, Any] | None = None,
    ) -> None:
        words = _arguments(list(vllm_serve_args), seed, auto_port, override_hf_configs)
        self.uds = None
        self.host = HOST
        self.show_hidden_metrics = any(
            word.startswith("--show-hidden-metrics-for-version") for word in words
        )
        self._engines = settings.engines()
        target = self._engines.target
        settings.provide(model, target.device)
        variables = settings.changed_variables(env_dict or {})
        generation = _GENERATIONS.get(variables.get(_GENERATION, ""), "auto")
        if generation != "auto":
            # The import of vLLM reads it, but what that decides can be decided again.
            del variables[_GENERATION]
        spec = EngineSpec.create(
            model=model, env=variables, command_line=(*self._command, *words), generation=generation
        )
        self._server: Server | None = None
        try:
            self._server = self._engines(
                spec, front="serve", timeout=settings.start_limit(max_wait_seconds)
            )
        except LimitExceeded:
            raise
        except ChildError as error:
            raise settings.start_error(error) from error
        self.port = int(self._server.root_url.rpartition(":")[2])

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the server.

        It stays warm for the next test with equal arguments until room is needed, or ends if
        servers are not reused.
        """
        server, self._server = self._server, None
        if server is not None:
            (self._engines.release if settings.reuses_servers() else self._engines.discard)(server)

    @property
    def server(self) -> Server:
        """Our own view of the server: its processes, log and requests with deadlines.

        Raises ``UsageError`` after the end of the block.
        """
        if self._server is None:
            raise UsageError("the server was released at the end of its with block")
        return self._server

    @property
    def url_root(self) -> str:
        """Address without a path."""
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        """Return the address of a path: ``url_for("v1", "models")``."""
        return self.url_root + "/" + "/".join(parts)

    get_client = _client("openai.OpenAI", "/v1")
    get_async_client = _client("openai.AsyncOpenAI", "/v1")
    get_client_anthropic = _client("anthropic.Anthropic")
    get_async_client_anthropic = _client("anthropic.AsyncAnthropic")


class RemoteLaunchRenderServer(RemoteOpenAIServer):
    """``vllm launch render`` for a test: a server without an engine.

    As ``RemoteOpenAIServer`` in all else.
    """

    _command = ("launch", "render")


def _arguments(
    words: list[str], seed: int | None, auto_port: bool, overrides: Mapping[str, Any] | None
) -> tuple[str, ...]:
    """Return the arguments of the command, checked and completed as upstream does, with absolute
    paths and without host and port."""
    flags = {word.partition("=")[0] for word in words}
    if auto_port and flags & {"-p", "--port"}:
        raise ValueError("You have manually specified the port when `auto_port=True`.")
    if seed is not None and "--seed" in flags:
        raise ValueError(f"You have manually specified the seed when `seed={seed}`.")
    if "--uds" in flags or any(flag.startswith("--ssl-") for flag in flags):
        raise UsageError("RemoteOpenAIServer: Unix sockets and TLS are not supported")
    kept: list[str] = []
    rest = iter(map(str, words))
    for word in rest:
        if word in _PORT:
            next(rest, None)
        elif word.partition("=")[0] not in _PORT:
            kept.append(os.path.abspath(word) if _is_relative_path(word) else word)
    if seed is not None:
        kept += ["--seed", str(seed)]
    if overrides is not None:
        kept += ["--hf-overrides", json.dumps(overrides)]
    return tuple(kept)


def _is_relative_path(word: str) -> bool:
    """Return whether ``word`` names an existing file or folder below the working directory: the
    server works in another one."""
    return not word.startswith(("-", "/")) and "/" in word and os.path.exists(word)


Logprobs = list[dict[str, float] | None] | None
Sample = tuple[list[int], str, Logprobs]
_TASKS = {
    "auto": "generate",
    "generate": "generate",
    "embed": "embed",
    "embedding": "embed",
    "classify": "classify",
    "score": "score",
}
_DEFAULTS: Mapping[str, Any] = {
    "trust_remote_code": True,
    "block_size": 16,
    "enable_chunked_prefill": False,
}
"""Upstream's defaults that differ from vLLM's.

``max_model_len`` and ``seed`` are fields of the spec.
"""


class VllmRunner:
    """An ``LLM`` for a test, in a process of its own. Objects with equal arguments share a running
    engine. Use it in a ``with`` block.

    ``model`` is our ``Engine``, not vLLM's ``LLM``: what is missing here is on it, with deadlines.
    Sampling parameters are a mapping by name, or vLLM's SamplingParams. The environment is chosen
    as for ``RemoteOpenAIServer``. Raises ``UsageError`` for a name without a stand-in on the
    simulated device, and the errors of starting an engine.
    """

    def __init__(
        self,
        model_name: str,
        task: str = "auto",
        tokenizer_name: str | None = None,
        *,
        seed: int | None = 0,
        max_model_len: int | None = 1024,
        dtype: str = "auto",
        tensor_parallel_size: int = 1,
        **arguments: Any,
    ) -> None:
        if task not in _TASKS:
            raise UsageError(f"VllmRunner: task={task!r} is not one of {', '.join(_TASKS)}")
        self._engines = settings.engines()
        settings.provide(model_name, self._engines.target.device)
        if tokenizer_name is not None:
            arguments["tokenizer"] = tokenizer_name
        spec = EngineSpec.create(
            model=model_name,
            task=_TASKS[task],
            seed=seed or 0,
            max_model_len=max_model_len or EngineSpec().max_model_len,
            tensor_parallel_size=tensor_parallel_size,
            dtype=None if dtype == "auto" else dtype,
            extra={
                **_DEFAULTS,
                **{name: value for name, value in arguments.items() if value is not None},
            },
        )
        self.model: Engine = self._engines(spec, front="offline")

    def __enter__(self) -> VllmRunner:
        return self

    def __exit__(self, *exception: object) -> None:
        self._engines.release(self.model)

    def generate(
        self, prompts: Sequence[str], sampling_params: object
    ) -> list[tuple[list[list[int]], list[str]]]:
        """Return for each prompt token ids and texts of its samples, each with the prompt before
        it."""
        results = self.model.generate(list(prompts), _sampling(sampling_params))
        return [
            _with_prompt(prompt, result) for prompt, result in zip(prompts, results, strict=True)
        ]

    def generate_w_logprobs(self, prompts: Sequence[str], sampling_params: object) -> list[Sample]:
        """Return for each prompt token ids, text and logprobs of its last sample."""
        results = self.model.generate(list(prompts), _sampling(sampling_params))
        return [_sample(result["outputs"][-1]) for result in results]

    def generate_greedy(
        self, prompts: Sequence[str], max_tokens: int
    ) -> list[tuple[list[int], str]]:
        """Return for each prompt token ids and text of the likeliest answer, with the prompt before
        it."""
        samples = self.generate(prompts, {"temperature": 0.0, "max_tokens": max_tokens})
        return [(ids[0], texts[0]) for ids, texts in samples]

    def generate_greedy_logprobs(
        self,
        prompts: Sequence[str],
        max_tokens: int,
        num_logprobs: int,
        *,
        stop_token_ids: list[int] | None = None,
        stop: list[str] | None = None,
    ) -> list[Sample]:
        """Return for each prompt token ids, text and logprobs of the likeliest answer."""
        sampling = {"temperature": 0.0, "max_tokens": max_tokens, "logprobs": num_logprobs}
        optional = {"stop_token_ids": stop_token_ids, "stop": stop}
        return self.generate_w_logprobs(
            prompts, {**sampling, **{n: v for n, v in optional.items() if v is not None}}
        )

    def generate_beam_search(
        self, prompts: Sequence[str], beam_width: int, max_tokens: int
    ) -> list[tuple[list[list[int]], list[str]]]:
        """Return for each prompt token ids and texts of the best beams."""
        found = self.model.beam_search(list(prompts), beam_width=beam_width, max_tokens=max_tokens)
        return [
            ([beam["token_ids"] for beam in beams], [beam["text"] for beam in beams])
            for beams in found
        ]

    def classify(self, prompts: Sequence[str]) -> list[list[float]]:
        """Return the probability of each class for each prompt."""
        return self.model.classify(list(prompts))

    def encode(self, prompts: Sequence[str]) -> list[list[float]]:
        """Return the vector of each prompt. Upstream's later name is ``embed``."""
        return self.model.embed(list(prompts))

    embed = encode

    def score(self, text_1: str, text_2: str | Sequence[str]) -> list[float]:
        """Return the score of ``text_1`` with each of ``text_2``."""
        return self.model.score(text_1, [text_2] if isinstance(text_2, str) else list(text_2))


def _with_prompt(prompt: str, result: RequestOutput) -> tuple[list[list[int]], list[str]]:
    ids, samples = result["prompt_token_ids"], result["outputs"]
    return [[*ids, *sample["token_ids"]] for sample in samples], [
        prompt + sample["text"] for sample in samples
    ]


def _sample(output: CompletionOutput) -> Sample:
    return output["token_ids"], output["text"], output["logprobs"]


def _sampling(params: object) -> dict[str, Any]:
    """Return sampling parameters by name.

    Of vLLM's own object, those that differ from its defaults.
    """
    if isinstance(params, Mapping):
        return dict(params)
    names: Sequence[str] = getattr(params, "__struct_fields__", ())
    if not names:
        raise UsageError(
            f"VllmRunner: sampling parameters are a mapping or vLLM's SamplingParams, not {type(params).__name__}"
        )
    default = type(params)()
    values = {name: getattr(params, name) for name in names if not name.startswith("_")}
    return {
        name: value
        for name, value in values.items()
        if value != getattr(default, name) and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float, list, dict, type(None)))
