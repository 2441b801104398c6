"""The engine role: one real vLLM engine in this process, answering the controller."""

import asyncio
import base64
from typing import Any, Awaitable, Dict, List, Optional, Union

from .. import Unsupported, calls
from ..dialect import engines, requests
from ..protocol import FrameSocket

Json = Dict[str, Any]
Prompt = Union[str, Json]


class EngineHost:
    """Holds an ``LLM`` (front offline) or an asynchronous engine (front async)."""

    def __init__(self, channel: FrameSocket) -> None:
        self._channel = channel
        self._engine: Any = None
        self._front = ""
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._requests = 0

    def start(self, spec: Json, front: str) -> Json:
        """Start the engine; the reply says how."""
        made = engines.plan(spec, front)
        engines.enter(made, front)
        self._front = front
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
    ) -> List[Any]:
        """Offline: one result per prompt. Async: per prompt the list of results as they were streamed."""
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        if len(each) != len(prompts):
            raise ValueError("{} prompts, but {} sampling parameters".format(len(prompts), len(each)))
        params = [requests.sampling_params(one, output_kind) for one in each]
        inputs = [_input(prompt) for prompt in prompts]
        loras = [each and requests.adapter(each) for each in adapters or [None] * len(prompts)]
        with engines.refusals():
            if self._front == "offline":
                asked = {"lora_request": loras} if any(loras) else {}
                return [_result(output) for output in self._engine.generate(inputs, params, use_tqdm=False, **asked)]
            return self._run(self._gather(inputs, params, loras, abort_after))  # type: ignore[no-any-return]

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

    def embed(self, prompts: List[Prompt]) -> List[List[float]]:
        """The vector of each prompt (offline only)."""
        outputs = self._pooled("embed", [_input(prompt) for prompt in prompts])
        return [[float(number) for number in output.outputs.embedding] for output in outputs]

    def score(self, text: str, others: List[str]) -> List[float]:
        """How alike `text` and each of `others` are (offline only)."""
        return [float(output.outputs.score) for output in self._pooled("score", text, others)]

    def _pooled(self, method: str, *inputs: Any) -> List[Any]:
        if self._front != "offline":
            raise Unsupported("{} is a method of the offline engine; use a server for the others".format(method))
        if not hasattr(self._engine, method):
            raise Unsupported("LLM.{} is not in vLLM {}".format(method, engines.version()))
        with engines.refusals():
            return list(getattr(self._engine, method)(*inputs, use_tqdm=False))

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

    async def _gather(
        self, inputs: List[Any], params: List[Any], loras: List[Any], abort_after: Optional[int]
    ) -> List[Any]:
        streams = (self._stream(each, its, lora, abort_after) for each, its, lora in zip(inputs, params, loras))
        return list(await asyncio.gather(*streams))

    async def _stream(self, each: Any, params: Any, lora: Any, abort_after: Optional[int]) -> List[Json]:
        self._requests += 1
        request_id = "regress-{}".format(self._requests)
        results: List[Json] = []
        asked = {"lora_request": lora} if lora else {}
        async for output in self._engine.generate(each, params, request_id, **asked):
            results.append(_result(output))
            if abort_after is not None and len(results) >= abort_after:
                aborted = self._engine.abort(request_id)
                if asyncio.iscoroutine(aborted):
                    await aborted
                break
        return results

    def _run(self, coroutine: Awaitable[Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)


def _input(prompt: Prompt) -> Any:
    """A prompt as vLLM takes it; an image comes as {"size": [w, h], "color": [r, g, b]} or as base64 data."""
    if isinstance(prompt, str) or "image" not in prompt:
        return prompt
    from PIL import Image

    given = prompt["image"]
    if "base64" in given:
        import io

        image = Image.open(io.BytesIO(base64.b64decode(given["base64"])))
    else:
        image = Image.new("RGB", tuple(given["size"]), tuple(given.get("color", (127, 127, 127))))
    return {"prompt": prompt["prompt"], "multi_modal_data": {"image": image}}


def _result(output: Any) -> Json:
    return {
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
