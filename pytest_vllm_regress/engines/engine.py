"""A vLLM engine in a child process, as tests use it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from ..errors import RemoteError, UsageError
from ..util.paths import writable_root
from .checkpoints.adapters import Adapter, ensure_adapter
from .inputs.script import NO_SCRIPTED_BEAMS, holds_script
from .processes.child_processes import Leftover
from .running import Launch, Running

_log = logging.getLogger("vllm_regress.engines")
Prompt = str | dict[str, Any]
"""A prompt: text; or a mapping with ``prompt`` (text) and ``image`` (``{"size": [w, h]}``),
``images`` (several of them) or ``audio`` (``{"seconds": 1.5}``, a tone); or ``{"embeds": {"length":
9, "seed": 0}}``, embeddings of this many tokens instead of text; or any other prompt that
vLLM takes and JSON can express."""
Sampling = Mapping[str, Any]
"""Sampling parameters: vLLM's SamplingParams by name.

``structured_outputs`` is translated for each version.
"""
Adapters = Adapter | Sequence[Adapter | None]
"""A LoRA adapter for all prompts, or one (or None) per prompt."""
Priority = int | Sequence[int]
"""A priority for all prompts, or one per prompt. Lower numbers are served first.

The engine needs ``extra={"scheduling_policy": "priority"}``.
"""
PROMPT = "Are you there?"
"""The prompt that proves that an engine works.

It has enough tokens, because some CPU builds crash with very few (see the page on devices).
"""


@dataclass(frozen=True)
class StartReport:
    """How the target started the engine: its keyword arguments, environment variables, remarks, and
    the generation that runs."""

    kwargs: Mapping[str, Any]
    env: Mapping[str, str]
    notes: tuple[str, ...]
    generation: str


class CompletionOutput(TypedDict):
    """One of the ``n`` texts of a request, like vLLM's class of this name. ``logprobs``: for each
    position, log probabilities by token id (as
    text)."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None
    cumulative_logprob: float | None
    logprobs: list[dict[str, float] | None] | None


class Beam(TypedDict):
    """A result of beam search, like vLLM's ``BeamSearchSequence``.

    Text and tokens begin with the prompt.
    """

    text: str
    token_ids: list[int]
    cumulative_logprob: float
    finish_reason: str | None
    stop_reason: int | str | None


class RequestOutput(TypedDict):
    """The result of a request so far, like vLLM's class of this name. The last result is
    ``finished``. ``prompt_logprobs`` begins with None.

    ``cached_tokens``: number of the prompt's tokens that came from the prefix cache; None if this
    vLLM does not report it.

    ``arrival`` is added by the harness: the position among all results of an asynchronous engine,
    from 1 (0 from other engines).
    """

    arrival: int
    request_id: str
    finished: bool
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[str, float] | None] | None
    cached_tokens: int | None
    outputs: list[CompletionOutput]


class RunningEngine(Running):
    """Base of both kinds of engines.

    The session makes them; tests get one from the fixture ``vllm_engine``.
    """

    front_role = "engine"

    def __init__(self, launch: Launch, started: StartReport) -> None:
        super().__init__(launch)
        self.started = started
        self.probe_file: Path | None = None
        """The file whose functions ``call`` runs:

        ``probe.py`` beside the test that uses the engine.
        """
        self._adapters: dict[Adapter, int] = {}  # the numbers that vLLM gets, from 1

    def call(self, function: str, /, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Run ``function`` of ``probe.py`` in the engine's process and return its value, which must
        be JSON.

        vLLM's engine object is its first argument.
        """
        file = self.probe_file
        if file is None or not file.exists():
            raise UsageError(
                f"Engine.call({function!r}): there is no {file or 'probe.py'}: write the function there"
            )
        return self.child.request(
            "call",
            self._deadline("request", timeout),
            file=str(file),
            function=function,
            arguments=arguments,
        )

    def adapter_path(self, adapter: Adapter) -> str:
        """Return the path of the forged adapter, which is written on first use.

        For functions of ``probe.py`` that load it themselves.
        """
        model = Path(str(self.started.kwargs["model"]))
        return str(ensure_adapter(adapter, model, writable_root() / "checkpoints"))

    def check(self) -> None:
        """Prove that the engine still works by generating one token or pooling one prompt.

        Raises what ``generate`` raises, and ``RemoteError`` for an empty answer.
        """
        if self.spec.task == "score":
            self._request_list("score", None, text=PROMPT, others=[PROMPT])
            return
        if self.spec.task != "generate":
            self._pool(self.spec.task, PROMPT, None)
            return
        (answer,) = self._generate(PROMPT, {"max_tokens": 1}, None, None)
        last = answer[-1] if isinstance(answer, list) else answer
        if not any(output["token_ids"] for output in last["outputs"]):
            raise RemoteError(f"a request for one token returned none: {last}", phase="request")

    def sleep(self, level: int = 1, *, timeout: float | None = None) -> None:
        """Release the KV cache. Level 1 also moves the weights to CPU memory, level 2 discards
        them.

        The engine needs ``extra={"enable_sleep_mode": True}`` and must have no running requests.
        Errors as in ``generate``.
        """
        self.child.request("sleep", self._deadline("request", timeout), level=level)

    def wake_up(self, *, timeout: float | None = None) -> None:
        """Restore what ``sleep`` released. Errors as in ``generate``."""
        self.child.request("wake_up", self._deadline("request", timeout))

    def reset_prefix_cache(self, *, timeout: float | None = None) -> None:
        """Forget the cached blocks of earlier prompts. Errors as in ``generate``."""
        self.child.request("reset_prefix_cache", self._deadline("request", timeout))

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, timeout: float | None = None
    ) -> list[list[float]]:
        """Return the vector of each prompt, in order. For engines with ``task="embed"``.

        Errors as in ``generate``.
        """
        return self._pool("embed", prompts, timeout)

    def classify(
        self, prompts: Prompt | Sequence[Prompt], *, timeout: float | None = None
    ) -> list[list[float]]:
        """Return the probability of each class for each prompt.

        For engines with ``task="classify"``. Errors as in ``generate``.
        """
        return self._pool("classify", prompts, timeout)

    def encode(
        self, prompts: Prompt | Sequence[Prompt], *, timeout: float | None = None
    ) -> list[list[list[float]]]:
        """Return the vectors of each prompt's tokens, in order.

        For engines with ``task="token_embed"``. Errors as in ``generate``.
        """
        return self._pool("token_embed", prompts, timeout)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        beam_width: int,
        max_tokens: int,
        timeout: float | None = None,
        **params: Any,
    ) -> list[list[Beam]]:
        """Call ``beam_search`` of vLLM's engine. Returns for each prompt, in order, the
        ``beam_width`` best texts, best first.

        ``params``: vLLM's BeamSearchParams by name. Errors as in ``generate``, and ``UsageError``
        for a scripted prompt, because each beam is sent as a new prompt and the simulated model
        cannot know where its answer begins. ``Unsupported`` for an asynchronous engine without beam
        search: from 0.11 on only the server has it.
        """
        prompts = _as_list(prompts)
        if holds_script(prompts):
            raise UsageError(NO_SCRIPTED_BEAMS)
        search = {"beam_width": beam_width, "max_tokens": max_tokens, **params}
        return self._request_list("beam_search", timeout, prompts=prompts, params=search)

    def stop(self, timeout: float | None = None) -> tuple[Leftover, ...]:
        """Stop by vLLM's own shutdown.

        Returns what the engine left behind, which has been removed.
        """
        return self.child.stop(self._deadline("stop", timeout))

    def _generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None,
        output_kind: str | None,
        timeout: float | None,
        adapters: Adapters | None = None,
        priority: Priority | None = None,
        **arguments: Any,
    ) -> list[Any]:
        prompts = _as_list(prompts)
        if adapters is not None:
            listed = _one_per_prompt(prompts, adapters, "adapters")
            arguments["adapters"] = [adapter and self._numbered(adapter) for adapter in listed]
        if priority is not None:
            arguments["priority"] = _one_per_prompt(prompts, priority, "priorities")
        params: Any
        if sampling is None or isinstance(sampling, Mapping):
            params = self.schemas.apply(sampling or {})
        else:
            params = [self.schemas.apply(one_prompt) for one_prompt in sampling]
        arguments.update(prompts=prompts, sampling=params, output_kind=output_kind)
        return self._request_list("generate", timeout, **arguments)

    def _core_in_front(self) -> bool:
        return (
            self.started.generation == "V0"
            or self.started.env.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
        )

    def _pool(
        self, task: str, prompts: Prompt | Sequence[Prompt], timeout: float | None
    ) -> list[Any]:
        return self._request_list("pool", timeout, task=task, prompts=_as_list(prompts))

    def _numbered(self, adapter: Adapter) -> dict[str, Any]:
        number = self._adapters.setdefault(adapter, len(self._adapters) + 1)
        return {"name": adapter.name, "number": number, "path": self.adapter_path(adapter)}

    def _request_list(self, operation: str, timeout: float | None, **arguments: Any) -> list[Any]:
        self.scripts.admit(arguments)
        value = self.child.request(operation, self._deadline("request", timeout), **arguments)
        self.scripts.check()
        assert isinstance(value, list)
        return value


class Engine(RunningEngine):
    """vLLM's ``LLM`` (front ``offline``). All requests of a call are answered together."""

    front = "offline"

    def score(
        self, text: str, others: Sequence[str], *, timeout: float | None = None
    ) -> list[float]:
        """Return the similarity of ``text`` and each of ``others``: the cosine of their vectors
        (``task="embed"``), or a cross-encoder's score
        of each pair (``task="score"``, for example with ``model="reranker"``)."""
        return self._request_list("score", timeout, text=text, others=list(others))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        output_kind: str | None = None,
        adapters: Adapters | None = None,
        priority: Priority | None = None,
        timeout: float | None = None,
    ) -> list[RequestOutput]:
        """Generate for every prompt. Returns one result per prompt, in order.

        ``prompts``: see ``Prompt``. ``sampling``: SamplingParams by name, with
        ``structured_outputs={"json": schema}`` (or regex, choice, grammar) for every version; a
        list has one entry per prompt, all in one batch. ``output_kind``: cumulative, delta or
        final_only. ``adapters``: a forged LoRA adapter, or one (or None) per prompt; the engine
        needs ``extra={"enable_lora": True}``. ``priority``: see ``Priority``. ``timeout`` in
        seconds replaces that of the request phase. Raises ``RemoteError``, ``ChildDied``,
        ``DeadlineExceeded``, ``Unsupported``, and ``ScriptError`` if a scripted answer could not be
        followed.
        """
        return self._generate(prompts, sampling, output_kind, timeout, adapters, priority)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling | None = None,
        *,
        timeout: float | None = None,
    ) -> list[RequestOutput]:
        """Call ``LLM.chat`` with one conversation. Returns a list of one result."""
        return self._request_list(
            "chat",
            timeout,
            messages=[dict(message) for message in messages],
            sampling=self.schemas.apply(sampling or {}),
        )


class AsyncEngine(RunningEngine):
    """vLLM's asynchronous engine (front ``async``). Requests are answered piece by piece."""

    front = "async"

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        output_kind: str | None = None,
        abort_after: int | Sequence[int | None] | None = None,
        adapters: Adapters | None = None,
        priority: Priority | None = None,
        in_turn: bool = False,
        timeout: float | None = None,
    ) -> list[list[RequestOutput]]:
        """Generate for all prompts at the same time. Returns for each prompt, in order, the list of
        results that were streamed.

        Arguments and errors as in ``Engine.generate``. ``abort_after``: abort each request after
        this many results, or each after its own number (None: not at all). ``in_turn``: send each
        request after the first result of the one before.
        """
        options: dict[str, Any] = {}
        if abort_after is not None:
            options["abort_after"] = (
                abort_after if isinstance(abort_after, int) else list(abort_after)
            )
        if in_turn:
            options["in_turn"] = True
        return self._generate(
            prompts, sampling, output_kind, timeout, adapters, priority, **options
        )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    return [prompts] if isinstance(prompts, (str, dict)) else list(prompts)


def _one_per_prompt(prompts: Sequence[Prompt], values: Any, what: str) -> list[Any]:
    """Return one value for each prompt, of a list of as many, or of one value for all."""
    listed = list(values) if isinstance(values, Sequence) else [values] * len(prompts)
    if len(listed) != len(prompts):
        raise UsageError(
            f"{len(prompts)} prompts, but {len(listed)} {what}: give one, or one for each prompt"
        )
    return listed


E = TypeVar("E", Engine, AsyncEngine)


def start_engine(kind: type[E], launch: Launch) -> E:
    """Start the engine.

    If that fails, the child and its descendants are killed before the error is raised.
    """
    child = launch.child
    try:
        plan = launch.ask("start", front=kind.front)
        started = StartReport(**{**plan, "notes": tuple(plan["notes"])})
        _log.info(
            "%s runs a %s engine, generation %s: %s",
            child.name,
            kind.front,
            started.generation,
            started.kwargs,
        )
        child.adopt_engine()
    except BaseException:
        child.kill()
        raise
    return kind(launch, started)
