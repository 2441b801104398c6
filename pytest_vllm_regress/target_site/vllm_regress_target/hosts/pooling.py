"""Pooling requests to an engine in this process: offline all at once, asynchronously each by itself."""

import asyncio
import inspect
from typing import Any, Dict, List

from .. import Unsupported
from ..dialect import engines, pooling

_METHODS = {"embed": "embed", "classify": "classify", "token_embed": "encode", "score": "score"}


def offline(engine: Any, task: str, *inputs: Any) -> List[Any]:
    """What ``LLM``'s method for the task answers, as JSON: numbers, lists of them, or lists of lists."""
    name = _METHODS[task]
    method = getattr(engine, name, None)
    if method is None:
        raise Unsupported("LLM.{} is not in vLLM {}".format(name, engines.version()))
    asked: Dict[str, Any] = {"use_tqdm": False}
    if task == "token_embed" and "pooling_task" in inspect.signature(method).parameters:
        asked["pooling_task"] = pooling.name_of(task)
    with engines.refusals():
        return [_plain(output.outputs) for output in method(*inputs, **asked)]


async def asynchronous(engine: Any, task: str, inputs: List[Any], first: int) -> List[Any]:
    """The same from an asynchronous engine; requests are numbered from ``first``."""
    asked = (_asked(engine, task, each, "regress-{}".format(first + at)) for at, each in enumerate(inputs))
    return list(await asyncio.gather(*asked))


async def _asked(engine: Any, task: str, given: Any, request_id: str) -> Any:
    with engines.refusals():
        async for output in engine.encode(given, pooling.params(task, engine), request_id):
            if output.finished:
                return _plain(output.outputs)
    raise RuntimeError("the pooling request {} ended without an answer".format(request_id))


def _plain(output: Any) -> Any:
    """What was pooled, by whichever name this class of output has for it."""
    for name in ("embedding", "probs", "score"):
        value = vars(output).get(name) if hasattr(output, "__dict__") else None
        if value is not None:
            return value if isinstance(value, float) else [float(number) for number in value]
    return output.data.tolist()
