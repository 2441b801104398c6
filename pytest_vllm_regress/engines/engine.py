"""A real vLLM engine in a child process, as tests use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..processes.child import Child, Leftover
from ..util.deadline import Deadline
from .schema_filter import SchemaFilter
from .spec import EngineSpec

Prompt = str | dict[str, Any]
Sampling = Mapping[str, Any]
DeadlineFor = Callable[[str, float | None], Deadline]
PROMPT = "Are you there?"
"""What proves that an engine works. Not shorter: of a few tokens some CPU builds die (docs/devices.md), whatever else they can do."""


@dataclasses.dataclass(frozen=True)
class StartReport:
    """How the target started the engine: its keyword arguments, variables, remarks, and the generation that really runs."""

    kwargs: Mapping[str, Any]
    env: Mapping[str, str]
    notes: tuple[str, ...]
    generation: str


class Engine:
    """An engine that answers. Made by the session; tests get it from the fixture ``vllm_engine``."""

    def __init__(
        self, child: Child, spec: EngineSpec, front: str, started: StartReport, deadline_for: DeadlineFor
    ) -> None:
        self.child = child
        self.spec = spec
        self.front = front
        self.started = started
        self.schemas = SchemaFilter()
        self._deadline = deadline_for

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        output_kind: str | None = None,
        abort_after: int | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Generate for every prompt.

        ``prompts``: text, or ``{"prompt": text, "image": {"size": [w, h]}}``. ``sampling``: SamplingParams by name, with
        ``structured_outputs={"json": schema}`` (or regex, choice, grammar) worded for every version alike; a list has one for each prompt,
        all in one batch. ``output_kind``:
        cumulative, delta or final_only. ``timeout`` in seconds replaces the request phase's.

        Returns one result per prompt; with ``front="async"`` the list of results streamed for it. A result has ``outputs`` (index,
        text, token_ids, finish_reason, logprobs ...), ``prompt_token_ids`` and ``finished``, as vLLM's RequestOutput.
        Raises ``RemoteError``, ``ChildDied``, ``DeadlineExceeded``, ``Unsupported``.
        """
        several = [prompts] if isinstance(prompts, (str, dict)) else list(prompts)
        given: Any
        if sampling is None or isinstance(sampling, Mapping):
            given = self.schemas.apply(sampling or {})
        else:
            given = [self.schemas.apply(each) for each in sampling]
        arguments: dict[str, Any] = {"prompts": several, "sampling": given, "output_kind": output_kind}
        if abort_after is not None:
            arguments["abort_after"] = abort_after
        return self._list("generate", timeout, **arguments)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> list[Any]:
        """``LLM.chat`` on one conversation (offline front only)."""
        return self._list(
            "chat", timeout, messages=[dict(m) for m in messages], sampling=self.schemas.apply(sampling or {})
        )

    def call(self, file: Path, function: str, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Run a probe function with the engine object as its first argument, in the engine's process."""
        return self.child.request(
            "call", self._deadline("request", timeout), file=str(file), function=function, arguments=arguments
        )

    def check(self) -> None:
        """Prove that the engine still works: one token is generated. Raises what ``generate`` raises."""
        self.generate(PROMPT, {"max_tokens": 1})

    def stop(self, timeout: float | None = None) -> tuple[Leftover, ...]:
        """vLLM's own shutdown; returns what it left behind (already removed)."""
        return self.child.stop(self._deadline("stop", timeout))

    def _list(self, operation: str, timeout: float | None, **arguments: Any) -> list[Any]:
        value = self.child.request(operation, self._deadline("request", timeout), **arguments)
        assert isinstance(value, list)
        return value


def start_engine(
    child: Child,
    spec: EngineSpec,
    front: str,
    request: Mapping[str, Any],
    deadline_for: DeadlineFor,
    timeout: float | None = None,
) -> Engine:
    """Start the engine in ``child``; on any failure the child's family is ended before the error is raised."""
    try:
        plan = child.request("start", deadline_for("start", timeout), spec=dict(request), front=front)
        started = StartReport(plan["kwargs"], plan["env"], tuple(plan["notes"]), plan["generation"])
    except BaseException:
        child.kill()
        raise
    return Engine(child, spec, front, started, deadline_for)
