"""The engine role: run one vLLM engine in this process and answer the controller's requests."""

import asyncio
from typing import Any, Awaitable, Dict, List, Optional, Union

from .. import Unsupported, calls
from ..dialect import engines, requests
from ..dialect.plan import Plan, plan
from ..protocol import FrameSocket
from . import beam_search, pooling
from .inputs import Json, Prompt, as_prompt
from .maintenance import EngineMaintenance


class EngineHost(EngineMaintenance):
    """Holds an ``LLM`` (front offline) or an asynchronous engine (front async)."""

    def __init__(self, channel: FrameSocket) -> None:
        self._channel = channel
        self._engine: Any = None
        self._front = ""
        self._model = ""
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._requests = 0
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
            self._engine = self._run(self._make_async(engine_plan))
        generation = engines.generation_of(self._engine)
        return {
            "kwargs": _jsonable(engine_plan.kwargs),
            "env": engine_plan.env,
            "notes": engine_plan.notes,
            "generation": generation,
        }

    def generate(
        self,
        prompts: List[Prompt],
        sampling: Union[Json, List[Json]],
        output_kind: Optional[str] = None,
        abort_after: Union[int, List[Optional[int]], None] = None,
        adapters: Optional[List[Optional[Json]]] = None,
        priority: Optional[List[int]] = None,
        in_turn: bool = False,
    ) -> List[Any]:
        """Generate. An offline engine returns one result per prompt, an async engine the list of
        streamed results per prompt.

        ``abort_after`` (async only): abort each request after this many results, or each after its
        own number.
        ``in_turn`` (async only): send each request after the previous one has begun to answer.
        """
        samplings = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        if len(samplings) != len(prompts):
            raise ValueError(
                "{} prompts, but {} sampling parameters".format(len(prompts), len(samplings))
            )
        params = [requests.sampling_params(options, output_kind) for options in samplings]
        inputs = [self._input(prompt) for prompt in prompts]
        more: Json = {}  # further arguments by vLLM's name, each with one value per request
        if adapters and any(adapters):
            more["lora_request"] = [adapter and requests.adapter(adapter) for adapter in adapters]
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

    def beam_search(self, prompts: List[Prompt], params: Json) -> List[List[Json]]:
        """Return the beams of each prompt, the best one first."""
        inputs = [
            {"prompt": prompt} if isinstance(prompt, str) else self._input(prompt)
            for prompt in prompts
        ]
        search_params = requests.beam_search_params(params)
        if self._front == "offline":
            return beam_search.offline(self._engine, inputs, search_params)
        first, self._requests = self._requests + 1, self._requests + len(inputs)
        return self._run(beam_search.asynchronous(self._engine, inputs, search_params, first))  # type: ignore[no-any-return]

    def chat(self, messages: List[Json], sampling: Json) -> List[Any]:
        """Call ``LLM.chat`` (offline only)."""
        if self._front != "offline":
            raise Unsupported(
                "chat is a method of the offline engine; use a server for chat completions",
                needs="another front",
            )
        return [
            _result(output)
            for output in self._engine.chat(
                messages, requests.sampling_params(sampling), use_tqdm=False
            )
        ]

    def pool(self, task: str, prompts: List[Prompt]) -> List[Any]:
        """Return the result of a pooling task for each prompt."""
        inputs = [self._input(prompt) for prompt in prompts]
        if self._front == "offline":
            return pooling.offline(self._engine, task, inputs)
        first, self._requests = self._requests + 1, self._requests + len(inputs)
        return self._run(pooling.asynchronous(self._engine, task, inputs, first))  # type: ignore[no-any-return]

    def score(self, text: str, others: List[str]) -> List[Any]:
        """Return the similarity of `text` to each of `others` (offline only)."""
        return pooling.offline(self._engine, "score", text, others)

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
        return self._run(self._shut_down(engine))  # type: ignore[no-any-return]

    async def _make_async(self, engine_plan: Plan) -> Any:
        return engines.make_async(engine_plan)

    async def _shut_down(self, engine: Any) -> Optional[str]:
        engines.shut_down_async(engine)
        return None

    async def _gather(
        self, generate_calls: List[Any], aborts: List[Optional[int]], in_turn: bool
    ) -> List[Any]:
        streams: List[Any] = []
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
    ) -> List[Json]:
        self._requests += 1
        request_id = "regress-{}".format(self._requests)
        results: List[Json] = []
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


def _logprobs(steps: Any) -> Optional[List[Optional[Dict[str, float]]]]:
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
