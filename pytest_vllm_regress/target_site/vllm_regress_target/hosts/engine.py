"""The engine role: run one vLLM engine in this process and answer the controller's engines."""

import asyncio
import importlib
import inspect
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, Optional, Union

from .. import Unsupported, calls
from ..dialect import engines, known, pooling
from ..dialect.installed import version
from ..dialect.plan import plan
from ..protocol import FrameSocket
from .inputs import Json, Prompt, as_prompt

_POOLING_METHODS = {
    "embed": "embed",
    "classify": "classify",
    "token_embed": "encode",
    "score": "score",
}


class EngineHost:
    """Holds an ``LLM`` (front offline) or an asynchronous engine (front async)."""

    def __init__(self, channel: FrameSocket) -> None:
        self._channel = channel
        self._engine: Any = None
        self._front = ""
        self._model = ""
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._results = 0

    def start(self, spec: Json, front: str) -> Json:
        """Start the engine. The reply describes the arguments and variables it was started with."""
        engine_plan = plan(spec, front)
        engines.prepare_process(engine_plan, front)
        self._front, self._model = front, str(engine_plan.kwargs["model"])
        if front == "offline":
            self._engine = engines.make_offline(engine_plan)
        else:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
            self._engine = self._run(_on_loop(engines.make_async, engine_plan))
        generation = engines.generation_of(self._engine)
        return {
            "kwargs": _jsonable(engine_plan.kwargs),
            "env": engine_plan.env,
            "notes": engine_plan.notes,
            "generation": generation,
        }

    def generate(
        self,
        prompts: list[Prompt],
        sampling: Union[Json, list[Json]],
        output_kind: Optional[str] = None,
        abort_after: Union[int, list[Optional[int]], None] = None,
        adapters: Optional[list[Optional[Json]]] = None,
        priority: Optional[list[int]] = None,
        in_turn: bool = False,
    ) -> list[Any]:
        """Generate. An offline engine returns one result per prompt, an async engine the list of
        streamed results per prompt.

        ``abort_after`` (async only): abort each request after this many results, or each after its
        own number.
        ``in_turn`` (async only): send each request after the previous one has begun to answer.
        """
        samplings = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        if len(samplings) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(samplings)} sampling parameters")
        params = [engines.sampling_params(options, output_kind) for options in samplings]
        inputs = [self._input(prompt) for prompt in prompts]
        more: Json = {}  # further arguments by vLLM's name, each with one value per request
        if adapters and any(adapters):
            more["lora_request"] = [adapter and engines.adapter(adapter) for adapter in adapters]
        if priority is not None:
            more["priority"] = priority
        with engines.as_unsupported():
            if self._front == "offline":
                return [
                    _result(output)
                    for output in self._engine.generate(inputs, params, use_tqdm=False, **more)
                ]
            generate_calls = [
                (prompt, param, {name: values[number] for name, values in more.items()})
                for number, (prompt, param) in enumerate(zip(inputs, params))
            ]
            aborts = abort_after if isinstance(abort_after, list) else [abort_after] * len(inputs)
            return self._run(self._gather(generate_calls, aborts, in_turn))  # type: ignore[no-any-return]

    def beam_search(self, prompts: list[Prompt], params: Json) -> list[list[Json]]:
        """Return the beams of each prompt, the best one first."""
        inputs = [
            {"prompt": prompt} if isinstance(prompt, str) else self._input(prompt)
            for prompt in prompts
        ]
        search_params = importlib.import_module("vllm.sampling_params").BeamSearchParams(**params)
        if self._front == "offline":
            return beams(self._engine, inputs, search_params)
        return self._run(async_beams(self._engine, inputs, search_params))  # type: ignore[no-any-return]

    def chat(self, messages: list[Json], sampling: Json) -> list[Any]:
        """Call ``LLM.chat`` (offline only)."""
        if self._front != "offline":
            raise Unsupported(
                "chat is a method of the offline engine; use a server for chat completions",
                lacks="chat in the asynchronous engine",
            )
        return [
            _result(output)
            for output in self._engine.chat(
                messages, engines.sampling_params(sampling), use_tqdm=False
            )
        ]

    def pool(self, task: str, prompts: list[Prompt]) -> list[Any]:
        """Return the result of a pooling task for each prompt."""
        inputs = [self._input(prompt) for prompt in prompts]
        if self._front == "offline":
            return pooled(self._engine, task, inputs)
        return self._run(async_pooled(self._engine, task, inputs))  # type: ignore[no-any-return]

    def score(self, text: str, others: list[str]) -> list[Any]:
        """Return the similarity of `text` to each of `others` (offline only)."""
        return pooled(self._engine, "score", text, others)

    def sleep(self, level: int) -> None:
        """Put the engine to sleep.

        Level 1 drops the KV cache and offloads the weights; level 2 drops both.
        """
        self._call_engine("sleep", level=level)

    def wake_up(self) -> None:
        """Wake the engine: restore everything that ``sleep`` released."""
        self._call_engine("wake_up")

    def reset_prefix_cache(self) -> None:
        """Reset the prefix cache, so that no block of an earlier prompt is reused."""
        self._call_engine("reset_prefix_cache")

    def _call_engine(self, method: str, **arguments: Any) -> None:
        function = getattr(self._engine, method, None)
        if function is None:
            raise Unsupported(
                f"{type(self._engine).__name__} has no {method}",
                lacks=f"{type(self._engine).__name__}.{method}",
            )
        with engines.as_unsupported():
            value = function(**arguments)
            if asyncio.iscoroutine(value):
                self._run(value)

    def call(self, file: str, function: str, arguments: Json) -> Any:
        """Run a probe function with the engine as its first argument; a coroutine function runs on
        the engine's loop."""
        value = calls.load_function(file, function)(self._engine, **arguments)
        return self._run(value) if asyncio.iscoroutine(value) else value

    def stop(self) -> Optional[str]:
        """Shut the engine down as vLLM does. The reply is a remark, or None."""
        if self._engine is None:
            return None
        engine, self._engine = self._engine, None
        if self._front == "offline":
            return engines.shut_down(engine)
        return self._run(_on_loop(engines.shut_down_async, engine))  # type: ignore[no-any-return]

    async def _gather(
        self, generate_calls: list[Any], aborts: list[Optional[int]], in_turn: bool
    ) -> list[Any]:
        streams: list[Any] = []
        for (prompt, params, more), abort_after in zip(generate_calls, aborts):
            begun = asyncio.Event()
            streams.append(
                asyncio.ensure_future(self._stream(prompt, params, more, abort_after, begun))
            )
            if in_turn:
                waiting = asyncio.ensure_future(begun.wait())
                await asyncio.wait({waiting, streams[-1]}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        return list(await asyncio.gather(*streams))

    async def _stream(
        self, prompt: Any, params: Any, more: Json, abort_after: Optional[int], begun: asyncio.Event
    ) -> list[Json]:
        request_id = _new_id()
        results: list[Json] = []
        async for output in self._engine.generate(prompt, params, request_id, **more):
            self._results += 1
            begun.set()
            results.append(_result(output, self._results))
            if abort_after is not None and len(results) >= abort_after:
                aborted = self._engine.abort(request_id)
                if asyncio.iscoroutine(aborted):
                    await aborted
                break
        return results

    def _input(self, prompt: Prompt) -> Any:
        return as_prompt(prompt, self._model)

    def _run(self, coroutine: Awaitable[Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)


async def _on_loop(function: Callable[[Any], Any], argument: Any) -> Any:
    return function(argument)


def _result(output: Any, arrival: int = 0) -> Json:
    return {
        "arrival": arrival,
        "request_id": output.request_id,
        "finished": output.finished,
        "prompt_token_ids": list(output.prompt_token_ids or []),
        "prompt_logprobs": _logprobs(output.prompt_logprobs),
        "cached_tokens": getattr(output, "num_cached_tokens", None),
        "outputs": [
            {
                "index": completion.index,
                "text": completion.text,
                "token_ids": list(completion.token_ids),
                "finish_reason": completion.finish_reason,
                "stop_reason": completion.stop_reason,
                "cumulative_logprob": completion.cumulative_logprob,
                "logprobs": _logprobs(completion.logprobs),
            }
            for completion in output.outputs
        ],
    }


def _logprobs(steps: Any) -> Optional[list[Optional[dict[str, float]]]]:
    """Return, for each position, log probabilities by token id (a string, as keys in JSON are)."""
    if steps is None:
        return None
    return [
        None if step is None else {str(token): _number(entry) for token, entry in step.items()}
        for step in steps
    ]


def _number(entry: Any) -> float:
    return float(max(getattr(entry, "logprob", entry), -1e30))


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def beams(engine: Any, prompts: list[Any], params: Any) -> list[list[Json]]:
    """Return the beams of ``LLM.beam_search`` for each prompt, the best one first."""
    with engines.as_unsupported():
        outputs = engine.beam_search(prompts, params)
    return [
        [_beam(beam, beam.text, beam.tokens, beam.cum_logprob) for beam in output.sequences]
        for output in outputs
    ]


async def async_beams(engine: Any, prompts: list[Any], params: Any) -> list[list[Json]]:
    """Like ``beams``, for an asynchronous engine.

    Raises ``Unsupported`` if the engine has no beam search.
    """
    if not hasattr(engine, "beam_search"):
        raise known.missing_feature("beam search by the asynchronous engine")
    tokenizer = await engine.get_tokenizer()
    tokenized = [_tokenized(prompt, tokenizer) for prompt in prompts]
    outputs = await _answered(
        lambda prompt, request_id: engine.beam_search(prompt, request_id, params), tokenized
    )
    return [
        [
            _beam(
                beam,
                (prompt.get("prompt") or "") + beam.text,
                [*output.prompt_token_ids, *beam.token_ids],
                beam.cumulative_logprob,
            )
            for beam in output.outputs
        ]
        for prompt, output in zip(tokenized, outputs)
    ]


def _tokenized(prompt: Json, tokenizer: Any) -> Json:
    """Return the prompt with its tokens, which vLLM 0.10 requires."""
    if "prompt_token_ids" in prompt or "prompt" not in prompt:
        return prompt
    return {**prompt, "prompt_token_ids": tokenizer.encode(prompt["prompt"])}


def _beam(beam: Any, text: str, tokens: Any, logprob: Any) -> Json:
    """Return a beam as the controller's ``Beam``, whose text and tokens include the prompt."""
    return {
        "text": text,
        "token_ids": list(tokens),
        "cumulative_logprob": float(logprob),
        "finish_reason": beam.finish_reason,
        "stop_reason": beam.stop_reason,
    }


def pooled(engine: Any, task: str, *inputs: Any) -> list[Any]:
    """Return the answers of ``LLM``'s method for the task as JSON: numbers, lists of them, or lists
    of lists."""
    name = _POOLING_METHODS[task]
    method = getattr(engine, name, None)
    if method is None:
        raise Unsupported(f"LLM.{name} is not in vLLM {version()}", lacks=f"LLM.{name}")
    arguments: dict[str, Any] = {"use_tqdm": False}
    if task == "token_embed" and "pooling_task" in inspect.signature(method).parameters:
        arguments["pooling_task"] = pooling.name_of(task)
    with engines.as_unsupported():
        return [_plain(output.outputs) for output in method(*inputs, **arguments)]


async def async_pooled(engine: Any, task: str, inputs: list[Any]) -> list[Any]:
    """Like ``pooled``, for an asynchronous engine."""
    outputs = await _answered(
        lambda item, request_id: engine.encode(item, pooling.params(task, engine), request_id),
        inputs,
    )
    return [_plain(output.outputs) for output in outputs]


async def _answered(ask: Callable[[Any, str], Any], inputs: list[Any]) -> list[Any]:
    """Return the finished output of each request; all of them are sent at the same time."""

    async def finished(item: Any) -> Any:
        request_id = _new_id()
        with engines.as_unsupported():
            async for output in ask(item, request_id):
                if output.finished:
                    return output
        raise RuntimeError(f"the request {request_id} ended without an answer")

    return list(await asyncio.gather(*map(finished, inputs)))


_NUMBERS = itertools.count(1)


def _new_id() -> str:
    """Return the id of a new request to an asynchronous engine."""
    return f"regress-{next(_NUMBERS)}"


def _plain(output: Any) -> Any:
    """Return the pooled numbers, whatever this class of output calls them."""
    for name in ("embedding", "probs", "score"):
        value = vars(output).get(name) if hasattr(output, "__dict__") else None
        if value is not None:
            return value if isinstance(value, float) else [float(number) for number in value]
    return output.data.tolist()
