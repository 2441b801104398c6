"""A real vLLM engine in a child process, as tests use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar

from ..checkpoints.adapters import Adapter, ensure_adapter
from ..dialogue.script import ScriptWatch
from ..errors import RemoteError, UsageError
from ..processes.child import Child
from ..processes.leftover import Leftover
from ..util.deadline import DeadlineFor
from ..util.paths import cache_root
from .schema_filter import SchemaFilter
from .spec import EngineSpec, Front

Prompt = str | dict[str, Any]
"""A prompt: text, or ``{"prompt": text, "image": {"size": [w, h]}}``."""
Sampling = Mapping[str, Any]
"""Sampling parameters: vLLM's SamplingParams by name, with ``structured_outputs`` worded for every version alike."""
Adapters = Adapter | Sequence[Adapter | None]
"""A LoRA adapter for every prompt, or one (or None) for each."""
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


class RequestOutput(TypedDict):
    """What a request gave so far, as vLLM's class of that name; the last one is ``finished``. ``prompt_logprobs`` has None for the first token."""

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
        """Prove that the engine still works: one token is generated. Raises what ``generate`` raises, and ``RemoteError`` where none came."""
        (answer,) = self._generate(PROMPT, {"max_tokens": 1}, None, None)
        last = answer[-1] if isinstance(answer, list) else answer
        if not any(output["token_ids"] for output in last["outputs"]):
            raise RemoteError(f"a request for one token brought none: {last}", phase="request")

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
        **arguments: Any,
    ) -> list[Any]:
        several = [prompts] if isinstance(prompts, (str, dict)) else list(prompts)
        if adapters is not None:
            each = [adapters] * len(several) if isinstance(adapters, Adapter) else list(adapters)
            if len(each) != len(several):
                raise UsageError(
                    f"{len(several)} prompts, but {len(each)} adapters: give one, or one (or None) for each prompt"
                )
            arguments["adapters"] = [adapter and self._numbered(adapter) for adapter in each]
        given: Any
        if sampling is None or isinstance(sampling, Mapping):
            given = self.schemas.apply(sampling or {})
        else:
            given = [self.schemas.apply(each) for each in sampling]
        return self._list("generate", timeout, prompts=several, sampling=given, output_kind=output_kind, **arguments)

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

    def check(self) -> None:
        """Prove that the engine still works: one token is generated, or one prompt pooled. Raises what ``generate`` raises."""
        if self.spec.task == "embed":
            self.embed(PROMPT)
        else:
            super().check()

    def embed(self, prompts: Prompt | Sequence[Prompt], *, timeout: float | None = None) -> list[list[float]]:
        """The vector of each prompt, in their order; for engines with ``task="embed"``. Errors as of ``generate``."""
        several = [prompts] if isinstance(prompts, (str, dict)) else list(prompts)
        return self._list("embed", timeout, prompts=several)

    def score(self, text: str, others: Sequence[str], *, timeout: float | None = None) -> list[float]:
        """How alike ``text`` and each of ``others`` are (the cosine of their vectors); for engines with ``task="embed"``."""
        return self._list("score", timeout, text=text, others=list(others))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        output_kind: str | None = None,
        adapters: Adapters | None = None,
        timeout: float | None = None,
    ) -> list[RequestOutput]:
        """Generate for every prompt; one result for each, in their order.

        ``prompts``: text, or ``{"prompt": text, "image": {"size": [w, h]}}``. ``sampling``: SamplingParams by name, with
        ``structured_outputs={"json": schema}`` (or regex, choice, grammar) worded for every version alike; a list has one for each prompt,
        all in one batch. ``output_kind``: cumulative, delta or final_only. ``adapters``: a forged LoRA adapter, or one (or None) for each prompt;
        the engine needs ``extra={"enable_lora": True}``. ``timeout`` in seconds replaces the request phase's.
        Raises ``RemoteError``, ``ChildDied``, ``DeadlineExceeded``, ``Unsupported``, and ``ScriptError`` where a scripted answer
        could not be said.
        """
        return self._generate(prompts, sampling, output_kind, timeout, adapters)

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
        timeout: float | None = None,
    ) -> list[list[RequestOutput]]:
        """Generate for every prompt, all at the same time; for each, in their order, the list of results that were streamed.

        Arguments and errors as of ``Engine.generate``. ``abort_after``: each request is aborted after that many results.
        """
        aborted = {} if abort_after is None else {"abort_after": abort_after}
        return self._generate(prompts, sampling, output_kind, timeout, adapters, **aborted)


E = TypeVar("E", Engine, AsyncEngine)


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
