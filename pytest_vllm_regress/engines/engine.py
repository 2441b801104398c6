"""A real vLLM engine in a child process, as tests use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar

from ..checkpoints.adapters import Adapter, ensure_adapter
from ..dialogue.script import NO_SCRIPTED_BEAMS, ScriptWatch, holds_script
from ..errors import RemoteError, UsageError
from ..processes.child import Child
from ..processes.leftover import Leftover
from ..util.deadline import DeadlineFor
from ..util.paths import cache_root
from .schema_filter import SchemaFilter
from .spec import EngineSpec, Front

Prompt = str | dict[str, Any]
"""A prompt: text; or a mapping with ``prompt`` (text) and ``image`` (``{"size": [w, h]}``), ``images`` (several of these) or ``audio``
(``{"seconds": 1.5}``, a tone); or ``{"embeds": {"length": 9, "seed": 0}}``, embeddings of as many tokens in place of text; or what vLLM itself
takes, as far as it is JSON."""
Sampling = Mapping[str, Any]
"""Sampling parameters: vLLM's SamplingParams by name, with ``structured_outputs`` worded for every version alike."""
Adapters = Adapter | Sequence[Adapter | None]
"""A LoRA adapter for every prompt, or one (or None) for each."""
Priority = int | Sequence[int]
"""A priority for every prompt, or one for each: the lower number is served first. The engine needs ``extra={"scheduling_policy": "priority"}``."""
PROMPT = "Are you there?"
"""What proves that an engine works. Not shorter: of a few tokens some CPU builds die (docs/devices.md), whatever else they can do."""


@dataclasses.dataclass(frozen=True)
class StartReport:
    """How the target started the engine: its keyword arguments, variables, remarks, and the generation that really runs."""

    kwargs: Mapping[str, Any]
    env: Mapping[str, str]
    notes: tuple[str, ...]
    generation: str


class CompletionOutput(TypedDict):
    """One of the ``n`` texts of a request, as vLLM's class of that name. ``logprobs``: by position, token id (as text) to log probability."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None
    cumulative_logprob: float | None
    logprobs: list[dict[str, float] | None] | None


class Beam(TypedDict):
    """One text that beam search found, as vLLM's ``BeamSearchSequence``: text and tokens have the prompt in front."""

    text: str
    token_ids: list[int]
    cumulative_logprob: float
    finish_reason: str | None
    stop_reason: int | str | None


class RequestOutput(TypedDict):
    """What a request gave so far, as vLLM's class of that name; the last one is ``finished``. ``prompt_logprobs`` has None for the first token.

    ``arrival`` is ours: which of all the results of an asynchronous engine it was, from 1 (0 from other engines).
    """

    arrival: int
    request_id: str
    finished: bool
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[str, float] | None] | None
    outputs: list[CompletionOutput]


class RunningEngine:
    """What engines of both kinds can do. Made by the session; tests get one from the fixture ``vllm_engine``."""

    front: ClassVar[Front]

    def __init__(
        self, child: Child, spec: EngineSpec, started: StartReport, deadline_for: DeadlineFor, scripts: ScriptWatch
    ) -> None:
        self.child = child
        self.spec = spec
        self.started = started
        self.schemas = SchemaFilter()
        self.scripts = scripts
        self.probe_file: Path | None = None
        """Whose functions ``call`` names: ``probe.py`` beside the test that has the engine."""
        self._deadline = deadline_for
        self._adapters: dict[Adapter, int] = {}  # vLLM's numbers, from 1

    def call(self, function: str, /, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Run a function of ``probe.py`` with vLLM's engine object as its first argument, in the engine's process; its value must be JSON."""
        file = self.probe_file
        if file is None or not file.exists():
            raise UsageError(f"Engine.call({function!r}): there is no {file or 'probe.py'}: write the function there")
        return self.child.request(
            "call", self._deadline("request", timeout), file=str(file), function=function, arguments=arguments
        )

    def adapter_path(self, adapter: Adapter) -> str:
        """Where the forged adapter lies, for a function of ``probe.py`` that loads it itself; written when it is not there yet."""
        model = Path(str(self.started.kwargs["model"]))
        return str(ensure_adapter(adapter, model, cache_root() / "checkpoints"))

    def check(self) -> None:
        """Prove that the engine still works: one token is generated, or one prompt pooled. Raises what ``generate`` raises, and ``RemoteError``
        where nothing came."""
        if self.spec.task == "score":
            self._list("score", None, text=PROMPT, others=[PROMPT])
            return
        if self.spec.task != "generate":
            self._pool(self.spec.task, PROMPT, None)
            return
        (answer,) = self._generate(PROMPT, {"max_tokens": 1}, None, None)
        last = answer[-1] if isinstance(answer, list) else answer
        if not any(output["token_ids"] for output in last["outputs"]):
            raise RemoteError(f"a request for one token brought none: {last}", phase="request")

    def sleep(self, level: int = 1, *, timeout: float | None = None) -> None:
        """Give up the KV cache; level 1 moves the weights away, level 2 gives up them, too. The engine needs
        ``extra={"enable_sleep_mode": True}``; no request may be under way. Errors as of ``generate``."""
        self.child.request("sleep", self._deadline("request", timeout), level=level)

    def wake_up(self, *, timeout: float | None = None) -> None:
        """Take back what sleeping gave up. Errors as of ``generate``."""
        self.child.request("wake_up", self._deadline("request", timeout))

    def reset_prefix_cache(self, *, timeout: float | None = None) -> None:
        """Use no block of an earlier prompt again. Errors as of ``generate``."""
        self.child.request("reset_prefix_cache", self._deadline("request", timeout))

    def embed(self, prompts: Prompt | Sequence[Prompt], *, timeout: float | None = None) -> list[list[float]]:
        """The vector of each prompt, in their order; for engines with ``task="embed"``. Errors as of ``generate``."""
        return self._pool("embed", prompts, timeout)

    def classify(self, prompts: Prompt | Sequence[Prompt], *, timeout: float | None = None) -> list[list[float]]:
        """The probability of each class for each prompt; for engines with ``task="classify"``. Errors as of ``generate``."""
        return self._pool("classify", prompts, timeout)

    def encode(self, prompts: Prompt | Sequence[Prompt], *, timeout: float | None = None) -> list[list[list[float]]]:
        """The vectors of each prompt's tokens, in their order; for engines with ``task="token_embed"``. Errors as of ``generate``."""
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
        """``beam_search`` of vLLM's ``LLM`` or asynchronous engine: for each prompt, in their order, the ``beam_width`` best texts, the best first.

        ``params``: of vLLM's BeamSearchParams, by name. Errors as of ``generate``, and ``UsageError`` for a scripted prompt: beams are sent as new
        prompts, in which the simulated model cannot tell what it has said. ``Unsupported`` where the asynchronous engine has none: from 0.11 on only
        the server has.
        """
        several = _several(prompts)
        if holds_script(several):
            raise UsageError(NO_SCRIPTED_BEAMS)
        asked = {"beam_width": beam_width, "max_tokens": max_tokens, **params}
        return self._list("beam_search", timeout, prompts=several, params=asked)

    def stop(self, timeout: float | None = None) -> tuple[Leftover, ...]:
        """vLLM's own shutdown; returns what it left behind (already removed)."""
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
        several = _several(prompts)
        if adapters is not None:
            each = [adapters] * len(several) if isinstance(adapters, Adapter) else list(adapters)
            _same_number(several, each, "adapters")
            arguments["adapters"] = [adapter and self._numbered(adapter) for adapter in each]
        if priority is not None:
            ranks = [priority] * len(several) if isinstance(priority, int) else list(priority)
            _same_number(several, ranks, "priorities")
            arguments["priority"] = ranks
        given: Any
        if sampling is None or isinstance(sampling, Mapping):
            given = self.schemas.apply(sampling or {})
        else:
            given = [self.schemas.apply(each) for each in sampling]
        return self._list("generate", timeout, prompts=several, sampling=given, output_kind=output_kind, **arguments)

    def _pool(self, task: str, prompts: Prompt | Sequence[Prompt], timeout: float | None) -> list[Any]:
        return self._list("pool", timeout, task=task, prompts=_several(prompts))

    def _numbered(self, adapter: Adapter) -> dict[str, Any]:
        number = self._adapters.setdefault(adapter, len(self._adapters) + 1)
        return {"name": adapter.name, "number": number, "path": self.adapter_path(adapter)}

    def _list(self, operation: str, timeout: float | None, **arguments: Any) -> list[Any]:
        self.scripts.admit(arguments)
        value = self.child.request(operation, self._deadline("request", timeout), **arguments)
        self.scripts.check()
        assert isinstance(value, list)
        return value


class Engine(RunningEngine):
    """vLLM's ``LLM`` (front ``offline``): requests are answered together, when all are done."""

    front = "offline"

    def score(self, text: str, others: Sequence[str], *, timeout: float | None = None) -> list[float]:
        """How alike ``text`` and each of ``others`` are: the cosine of their vectors (``task="embed"``), or what a cross-encoder says of each pair
        (``task="score"``, as of ``model="reranker"``)."""
        return self._list("score", timeout, text=text, others=list(others))

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
        """Generate for every prompt; one result for each, in their order.

        ``prompts``: as of ``Prompt``. ``sampling``: SamplingParams by name, with
        ``structured_outputs={"json": schema}`` (or regex, choice, grammar) worded for every version alike; a list has one for each prompt,
        all in one batch. ``output_kind``: cumulative, delta or final_only. ``adapters``: a forged LoRA adapter, or one (or None) for each prompt;
        the engine needs ``extra={"enable_lora": True}``. ``priority``: as of ``Priority``. ``timeout`` in seconds replaces the request phase's.
        Raises ``RemoteError``, ``ChildDied``, ``DeadlineExceeded``, ``Unsupported``, and ``ScriptError`` where a scripted answer
        could not be said.
        """
        return self._generate(prompts, sampling, output_kind, timeout, adapters, priority)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], sampling: Sampling | None = None, *, timeout: float | None = None
    ) -> list[RequestOutput]:
        """``LLM.chat`` on one conversation; a list of one result."""
        return self._list(
            "chat", timeout, messages=[dict(m) for m in messages], sampling=self.schemas.apply(sampling or {})
        )


class AsyncEngine(RunningEngine):
    """vLLM's asynchronous engine (front ``async``): requests are answered piece by piece."""

    front = "async"

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        output_kind: str | None = None,
        abort_after: int | None = None,
        adapters: Adapters | None = None,
        priority: Priority | None = None,
        in_turn: bool = False,
        timeout: float | None = None,
    ) -> list[list[RequestOutput]]:
        """Generate for every prompt, all at the same time; for each, in their order, the list of results that were streamed.

        Arguments and errors as of ``Engine.generate``. ``abort_after``: each request is aborted after that many results. ``in_turn``: each is sent
        when the one before it has given its first result.
        """
        more: dict[str, Any] = {} if abort_after is None else {"abort_after": abort_after}
        if in_turn:
            more["in_turn"] = True
        return self._generate(prompts, sampling, output_kind, timeout, adapters, priority, **more)


E = TypeVar("E", Engine, AsyncEngine)


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    return [prompts] if isinstance(prompts, (str, dict)) else list(prompts)


def _same_number(prompts: Sequence[Prompt], given: Sequence[object], what: str) -> None:
    if len(given) != len(prompts):
        raise UsageError(f"{len(prompts)} prompts, but {len(given)} {what}: give one, or one for each prompt")


def start_engine(
    kind: type[E],
    child: Child,
    spec: EngineSpec,
    request: Mapping[str, Any],
    deadline_for: DeadlineFor,
    scripts: ScriptWatch,
    timeout: float | None = None,
) -> E:
    """Start the engine in ``child``; on any failure the child's family is ended before the error is raised."""
    try:
        plan = child.request("start", deadline_for("start", timeout), spec=dict(request), front=kind.front)
        started = StartReport(plan["kwargs"], plan["env"], tuple(plan["notes"]), plan["generation"])
        child.take()
    except BaseException:
        child.kill()
        raise
    return kind(child, spec, started, deadline_for, scripts)
