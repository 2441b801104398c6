"""Pooling requests to an engine in this process: all at once offline, one by one with an
asynchronous engine."""

import asyncio
import inspect
from typing import Any, Dict, List

from .. import Unsupported
from ..dialect import engines, installed, pooling

_METHODS = {"embed": "embed", "classify": "classify", "token_embed": "encode", "score": "score"}


def offline(engine: Any, task: str, *inputs: Any) -> List[Any]:
    """Return the answers of ``LLM``'s method for the task as JSON: numbers, lists of them, or lists
    of lists."""
    name = _METHODS[task]
    method = getattr(engine, name, None)
    if method is None:
        raise Unsupported("LLM.{} is not in vLLM {}".format(name, installed.version()))
    arguments: Dict[str, Any] = {"use_tqdm": False}
    if task == "token_embed" and "pooling_task" in inspect.signature(method).parameters:
        arguments["pooling_task"] = pooling.name_of(task)
    with engines.as_unsupported():
        return [_plain(output.outputs) for output in method(*inputs, **arguments)]


async def asynchronous(engine: Any, task: str, inputs: List[Any], first: int) -> List[Any]:
    """Like ``offline``, for an asynchronous engine. Request numbers begin at ``first``."""
    answers = (
        _answer(engine, task, item, "regress-{}".format(number))
        for number, item in enumerate(inputs, first)
    )
    return list(await asyncio.gather(*answers))


async def _answer(engine: Any, task: str, item: Any, request_id: str) -> Any:
    with engines.as_unsupported():
        async for output in engine.encode(item, pooling.params(task, engine), request_id):
            if output.finished:
                return _plain(output.outputs)
    raise RuntimeError("the pooling request {} ended without an answer".format(request_id))


def _plain(output: Any) -> Any:
    """Return the pooled numbers, whatever this class of output calls them."""
    for name in ("embedding", "probs", "score"):
        value = vars(output).get(name) if hasattr(output, "__dict__") else None
        if value is not None:
            return value if isinstance(value, float) else [float(number) for number in value]
    return output.data.tolist()
