"""The engine role: one real vLLM engine in this process, answering the controller."""

import asyncio
from typing import Any, Awaitable, Dict, List, Optional, Union

from .. import Unsupported, calls
from ..dialect import engines, requests
from ..protocol import FrameSocket
from . import beams, pooling
from .inputs import Json, Prompt, as_prompt
from .upkeep import Upkeep


class EngineHost(Upkeep):
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
        """Start the engine; the reply says how."""
        made = engines.plan(spec, front)
        engines.enter(made, front)
        self._front, self._model = front, str(made.kwargs["model"])
        if front == "offline":
            self._engine = engines.make_offline(made)
        else:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
            self._engine = self._run(self._make_async(made))
        generation = engines.generation_of(self._engine)
        return {"kwargs": _jsonable(made.kwargs), "env": made.env, "notes": made.notes, "generation": generation}

    def generate(
        self,
        prompts: List[Prompt],
        sampling: Union[Json, List[Json]],
        output_kind: Optional[str] = None,
        abort_after: Optional[int] = None,
        adapters: Optional[List[Optional[Json]]] = None,
        priority: Optional[List[int]] = None,
        in_turn: bool = False,
    ) -> List[Any]:
        """Offline: one result per prompt. Async: per prompt the list of results as they were streamed.

        ``in_turn``: each request is sent when the one before it has begun (async only).
        """
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        if len(each) != len(prompts):
            raise ValueError("{} prompts, but {} sampling parameters".format(len(prompts), len(each)))
        params = [requests.sampling_params(one, output_kind) for one in each]
        inputs = [self._input(prompt) for prompt in prompts]
        more: Json = {}  # for every request, by vLLM's name of the argument
        if adapters and any(adapters):
            more["lora_request"] = [one and requests.adapter(one) for one in adapters]
        if priority is not None:
            more["priority"] = priority
        with engines.refusals():
            if self._front == "offline":
                return [_result(output) for output in self._engine.generate(inputs, params, use_tqdm=False, **more)]
            asked = [
                (prompt, its, {name: values[number] for name, values in more.items()})
                for number, (prompt, its) in enumerate(zip(inputs, params))
            ]
            return self._run(self._gather(asked, abort_after, in_turn))  # type: ignore[no-any-return]

    def beam_search(self, prompts: List[Prompt], params: Json) -> List[List[Json]]:
        """The best texts of each prompt, the best one first."""
        inputs = [{"prompt": each} if isinstance(each, str) else self._input(each) for each in prompts]
        wanted = requests.beam_search_params(params)
        if self._front == "offline":
            return beams.offline(self._engine, inputs, wanted)
        first, self._requests = self._requests + 1, self._requests + len(inputs)
        return self._run(beams.asynchronous(self._engine, inputs, wanted, first))  # type: ignore[no-any-return]

    def chat(self, messages: List[Json], sampling: Json) -> List[Any]:
        """``LLM.chat`` (offline only)."""
        if self._front != "offline":
            raise Unsupported(
                "chat is a method of the offline engine; use a server for chat completions", needs="another front"
            )
        return [
            _result(output)
            for output in self._engine.chat(messages, requests.sampling_params(sampling), use_tqdm=False)
        ]

    def pool(self, task: str, prompts: List[Prompt]) -> List[Any]:
        """What the task gives for each prompt."""
        inputs = [self._input(prompt) for prompt in prompts]
        if self._front == "offline":
            return pooling.offline(self._engine, task, inputs)
        first, self._requests = self._requests + 1, self._requests + len(inputs)
        return self._run(pooling.asynchronous(self._engine, task, inputs, first))  # type: ignore[no-any-return]

    def score(self, text: str, others: List[str]) -> List[Any]:
        """How alike `text` and each of `others` are (offline only)."""
        return pooling.offline(self._engine, "score", text, others)

    def call(self, file: str, function: str, arguments: Json) -> Any:
        """Run a probe function with the engine as its first argument; a coroutine function runs on the engine's loop."""
        value = calls.load_function(file, function)(self._engine, **arguments)
        return self._run(value) if asyncio.iscoroutine(value) else value

    def stop(self) -> Optional[str]:
        """vLLM's own shutdown; the reply is a remark, if there is one to make."""
        if self._engine is None:
            return None
        engine, self._engine = self._engine, None
        if self._front == "offline":
            return engines.shut_down(engine)
        return self._run(self._shut_down(engine))  # type: ignore[no-any-return]

    async def _make_async(self, made: engines.Plan) -> Any:
        return engines.make_async(made)

    async def _shut_down(self, engine: Any) -> Optional[str]:
        engines.shut_down_async(engine)
        return None

    async def _gather(self, asked: List[Any], abort_after: Optional[int], in_turn: bool) -> List[Any]:
        streams: List[Any] = []
        for prompt, params, more in asked:
            begun = asyncio.Event()
            streams.append(asyncio.ensure_future(self._stream(prompt, params, more, abort_after, begun)))
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
        "outputs": [
            {
                "index": each.index,
                "text": each.text,
                "token_ids": list(each.token_ids),
                "finish_reason": each.finish_reason,
                "stop_reason": each.stop_reason,
                "cumulative_logprob": each.cumulative_logprob,
                "logprobs": _logprobs(each.logprobs),
            }
            for each in output.outputs
        ],
    }


def _logprobs(steps: Any) -> Optional[List[Optional[Dict[str, float]]]]:
    """Per position: token id (as a string, JSON's only key) to log probability."""
    if steps is None:
        return None
    return [None if step is None else {str(token): _number(entry) for token, entry in step.items()} for step in steps]


def _number(entry: Any) -> float:
    return float(max(getattr(entry, "logprob", entry), -1e30))


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(each) for each in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
