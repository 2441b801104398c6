"""Asks an engine a fixed list of requests and reports everything about the answers that does not
depend on time.

Its functions are called in the engine's own process. Exceptions are answers.
"""

import asyncio
import importlib
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Optional

from ..dialect import engines, pooling
from ..dialect.signatures import has_parameter
from .inputs import as_prompt

Json = dict[str, Any]
IDLE_STEPS, PAUSE_S = 60, 0.01
"""Steps without an output after which requests count as stuck: a long prompt takes fewer."""
_OF_TIME = re.compile(r"second|time|_created|_info|throughput|flops|bytes_")
"""Metrics that depend on time or on the machine."""
GRAMMAR_S = 5.0
_CLOCK = re.compile(r"\[\d\d:\d\d:\d\d\] ")
_OF_REQUESTS = "request_(success|prompt|generation|params|max)|:(prompt|generation)_tokens$"
"""Metrics that depend on the requests alone."""
_STATE = {
    "running": ("running",),
    "waiting": ("waiting",),
    "free blocks": ("kv_cache_manager", "block_pool", "get_num_free_blocks"),
    "free encoder cache": ("encoder_cache_manager", "num_freeable_slots"),
}
"""Scheduler state recorded after each step: attribute path by name."""


def stepped(engine: Any, requests: list[Json]) -> Json:
    """Submit requests to an offline engine whose core runs in this process, each before the step that
    it names, and step until all have ended. Return the answers by id, the state after each step, and
    how the metrics changed."""
    inner, answers = engine.llm_engine, {}  # type: Any, dict[str, Json]
    before, states, idle, step = _metrics(), [], 0, 0  # type: Any, list[Any], int, int
    waiting = list(requests)
    while waiting or inner.has_unfinished_requests():
        for request in [one for one in waiting if one["at"] <= step]:
            waiting.remove(request)
            _add(engine, request, answers)
        for request in requests:
            if request["abort_at"] == step:
                _guarded(lambda name=request["id"]: inner.abort_request([name]))
        _wait_for_grammars(inner)
        outputs = inner.step()
        for output in outputs:
            answers.setdefault(output.request_id, {}).setdefault("parts", []).append((step, output))
        states.append(_state(inner))
        step, idle = step + 1, 0 if outputs or waiting else idle + 1
        if idle > 1:
            time.sleep(PAUSE_S)
        if idle > IDLE_STEPS:
            left = sorted(map(_external, inner.output_processor.request_states.values()))
            answers["not ended"] = {"error": ["no end", f"no tokens any more for {left}"]}
            _abort_all(inner)
            break
    inner.step()  # tells the worker which requests have ended
    return {
        "answers": {name: _joined(one) for name, one in answers.items()},
        "states": states,
        "metrics": _changes(before, _metrics()),
    }


def _wait_for_grammars(inner: Any) -> None:
    """Wait until the grammars of all requests are compiled, which threads do: then the step in
    which a request begins is the same in every run."""
    core = getattr(getattr(inner, "engine_core", None), "engine_core", None)
    requests = getattr(getattr(core, "scheduler", None), "requests", {})
    end = time.monotonic() + GRAMMAR_S
    for request in list(requests.values()):
        structured = getattr(request, "structured_output_request", None)
        while not getattr(structured, "is_grammar_ready", True) and time.monotonic() < end:
            time.sleep(0.001)


def _external(state: Any) -> str:
    return str(getattr(state, "external_req_id", None) or state.request_id)


def _abort_all(inner: Any) -> None:
    states = inner.output_processor.request_states
    options = {"internal": True} if has_parameter(inner.abort_request, "internal") else {}
    _guarded(lambda: inner.abort_request(list(states), **options))
    states.clear()


def _add(engine: Any, request: Json, answers: dict[str, Json]) -> None:
    name, inner = request["id"], engine.llm_engine
    try:
        prompt, params, more = _arguments(inner, request)
        inner.add_request(name, prompt, params, **more)
    except Exception as error:
        answers[name] = {"error": _described(error)}
    else:
        answers.setdefault(name, {"kind": request["kind"]})


async def streamed(engine: Any, requests: list[Json]) -> Json:
    """Submit requests to an asynchronous engine at once, and end early those that ask for it.
    Return the answers by id, and how the metrics changed."""
    before = _metrics()
    answers = await asyncio.gather(*(_stream(engine, request) for request in requests))
    await _settled(engine)
    # Which requests run together, and how far one came, is a matter of time.
    early = any(request["end"] for request in requests)
    told = re.compile("request_success" if early else _OF_REQUESTS)
    changes = {name: n for name, n in _changes(before, _metrics()).items() if told.search(name)}
    for answer in answers:
        answer.pop("cached", None)
    return {
        "answers": {
            request["id"]: answer for request, answer in zip(requests, answers, strict=False)
        },
        "metrics": changes,
    }


async def _settled(engine: Any) -> None:
    """Wait until the front process has no request."""
    for _ in range(200):
        processor = engine.output_processor
        if not getattr(processor, "request_states", None):
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)  # statistics of the last step


async def _stream(engine: Any, request: Json) -> Json:
    name, how, after = request["id"], request.get("end", ""), request.get("after", 0)
    parts: list[Any] = []
    answer: Json = {"kind": request["kind"], "parts": parts, "ended early": bool(how)}

    async def read() -> None:
        prompt, params, more = _arguments(engine, request)
        pools = not hasattr(params, "output_kind") or request.get("task")
        ask = engine.encode if pools else engine.generate
        stream = ask(prompt, params, name, **more)
        async for output in stream:
            parts.append((0, output))
            if request["slow"]:  # results are merged while nobody takes them
                await asyncio.sleep(0.05)
            if how and len(parts) >= after > 0:
                await _end(engine, how, name, stream)
                if how == "close":
                    return

    task = asyncio.ensure_future(read())
    if how and not after:
        await asyncio.sleep(0)
        await _end(engine, how, name, task)
    try:
        await asyncio.wait_for(task, 60)
    except asyncio.CancelledError:
        answer["cancelled"] = True
    except Exception as error:
        answer["error"] = _described(error)
    return _joined(answer)


async def _end(engine: Any, how: str, name: str, stream: Any) -> None:
    if how == "close":
        if hasattr(stream, "aclose"):
            await stream.aclose()
        else:
            stream.cancel()
        return
    for _ in range(2 if how == "abort twice" else 1):
        aborted = engine.abort(name)
        if asyncio.iscoroutine(aborted):
            await aborted


async def called(engine: Any, method: str, arguments: Json) -> Json:
    """Call a method of an asynchronous engine and return its value."""
    try:
        value = getattr(engine, method)(**arguments)
        if asyncio.iscoroutine(value):
            value = await asyncio.wait_for(value, 60)
        return {"value": _plain(value)}
    except Exception as error:
        return {"error": _described(error)}


def called_offline(engine: Any, method: str, arguments: Json) -> Json:
    """Call a method of an ``LLM`` and return its value."""

    def call() -> Any:
        options = dict(arguments)
        if "sampling_params" in options:
            options["sampling_params"] = engines.sampling_params(options["sampling_params"])
        if "beam" in options:
            beam = importlib.import_module("vllm.sampling_params").BeamSearchParams
            options["params"] = beam(**options.pop("beam"))
        value = getattr(engine, method)(*options.pop("first", ()), **options)
        engine.llm_engine.step()  # tells the worker which requests have ended
        return _plain(value)

    return _guarded(call)


def _arguments(engine: Any, request: Json) -> Any:
    """Return prompt, parameters and further arguments of a request."""
    more: Json = {}
    if request.get("adapter"):
        more["lora_request"] = engines.adapter(request["adapter"])
    if request.get("priority") is not None:
        more["priority"] = request["priority"]
    prompt = as_prompt(request["prompt"], request["model"])
    if request.get("task"):
        return prompt, pooling.params(request["task"], engine), more
    options = dict(request["options"])
    if "repetition_detection" in options:
        parameters = importlib.import_module("vllm.sampling_params").RepetitionDetectionParams
        options["repetition_detection"] = parameters(**options["repetition_detection"])
    return prompt, engines.sampling_params(options, request["kind"]), more


def _joined(answer: Json) -> Json:
    """Join the parts of an answer as a client does."""
    parts = answer.pop("parts", [])
    kind = answer.pop("kind", "")
    early = answer.pop("ended early", False)
    outputs: dict[int, Json] = {}
    for _, part in parts:
        if not hasattr(part.outputs, "__iter__"):  # of a pooling task
            answer["data"] = _rounded(part.outputs)
            continue
        for choice in part.outputs:
            old = outputs.get(choice.index) if kind == "delta" else None
            outputs[choice.index] = _choice(choice, old)
        answer.setdefault("prompt", _prompt(part))
        if part.prompt_logprobs is not None and len(part.prompt_logprobs):
            told = answer.get("prompt_logprobs", []) if kind == "delta" else []
            answer["prompt_logprobs"] = told + list(map(_ranked, part.prompt_logprobs))
    if parts and not early:
        last = parts[-1][1]
        answer["finished"] = last.finished
        answer["cached"] = getattr(last, "num_cached_tokens", None)
        if parts[-1][0]:
            answer["steps"] = _runs([step for step, _ in parts])
    answer["outputs"] = [outputs[index] for index in sorted(outputs)]
    if early:  # how far it came is a matter of time
        names = ("finish", "stop", "index")
        answer["outputs"] = [{name: one[name] for name in names} for one in answer["outputs"]]
        answer["outputs"] = answer["outputs"][:1]
    return answer


def _prompt(part: Any) -> Json:
    tokens = list(part.prompt_token_ids or ())
    return {"tokens": len(tokens), "ends": tokens[:3] + tokens[-3:]}


def _choice(choice: Any, old: Optional[Json]) -> Json:
    logprobs = choice.logprobs
    new = {
        "index": choice.index,
        "text": choice.text,
        "tokens": list(choice.token_ids),
        "logprobs": None if logprobs is None else list(map(_ranked, logprobs)),
    }
    if old is not None:
        for name in ("text", "tokens", "logprobs"):
            if old[name] is not None:
                new[name] = old[name] + (new[name] or type(old[name])())
    new["finish"] = choice.finish_reason
    new["stop"] = choice.stop_reason
    new["sum"] = _rounded(choice.cumulative_logprob)
    return new


def _ranked(step: Any) -> Any:
    """Return the tokens of one position with rank, log-probability and text. Masked tokens are left
    out: which of them are listed is arbitrary."""
    if step is None:
        return None
    return [
        [token, entry.rank, round(float(entry.logprob), 3), entry.decoded_token]
        for token, entry in step.items()
        if float(entry.logprob) > -9999
    ]


def _runs(steps: list[int]) -> str:
    """Return numbers as ranges: ``3-5 8``."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _plain(value: Any) -> Any:
    """Return a value of vLLM's as JSON, without what depends on time."""
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    if hasattr(value, "outputs") and hasattr(value, "request_id"):
        return _joined({"parts": [(0, value)], "kind": ""})
    if hasattr(value, "sequences"):  # of beam search
        return [
            [one.text, list(one.tokens)[-20:], _rounded(one.cum_logprob), one.finish_reason]
            for one in value.sequences
        ]
    if isinstance(value, (str, int, bool, type(None))):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    return _rounded(value) if isinstance(value, float) else type(value).__name__


def _rounded(value: Any) -> Any:
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return round(value, 3)
    for name in ("embedding", "probs", "score", "data"):
        if hasattr(value, "__dict__") and name in vars(value):
            return _rounded(vars(value)[name])
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):  # a long vector is as good as its beginning and its sum
        numbers = [one for one in value if isinstance(one, (int, float))]
        if len(numbers) == len(value):
            return [len(value), *(round(n, 3) for n in numbers[:4]), round(sum(numbers), 2)]
        return [_rounded(one) for one in value]
    return type(value).__name__


def _state(inner: Any) -> list[Optional[int]]:
    """Return the numbers of ``_STATE`` that this release has."""
    core = getattr(getattr(inner, "engine_core", None), "engine_core", None)
    return [_number(getattr(core, "scheduler", None), path) for path in _STATE.values()]


def _number(owner: Any, path: tuple[str, ...]) -> Optional[int]:
    for name in path:
        owner = getattr(owner, name, None)
    with suppress(Exception):
        owner = owner() if callable(owner) else owner
        return owner if isinstance(owner, int) else len(owner)
    return None


def _metrics() -> dict[str, float]:
    """Return vLLM's counters and gauges, by name and labels."""
    try:
        reader = importlib.import_module("vllm.v1.metrics.reader")
        return dict(_values(reader.get_metrics_snapshot()))
    except Exception:
        return {}


def _values(metrics: Any) -> Iterator[tuple[str, float]]:
    for metric in metrics:
        labels = {k: v for k, v in metric.labels.items() if k not in ("model_name", "engine")}
        name = metric.name + (f"{labels}" if labels else "")
        if _OF_TIME.search(metric.name):
            continue
        if hasattr(metric, "value"):
            yield name, metric.value
        elif hasattr(metric, "buckets"):
            yield f"{name} count", metric.count
            yield f"{name} sum", round(metric.sum, 3)
        else:
            yield from ((f"{name} {number}", one) for number, one in enumerate(metric.values))


def _changes(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    changes = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: round(change, 3) for name, change in changes.items() if change}


def _guarded(function: Any) -> Json:
    try:
        return {"value": function()}
    except Exception as error:
        return {"error": _described(error)}


def _described(error: BaseException) -> list[str]:
    return [type(error).__name__, _CLOCK.sub("", str(error))[:300]]
