"""Pooling in the words of the installed vLLM: vectors, classes and scores of prompts.

Our tasks are ``embed`` (a vector), ``token_embed`` (a vector for each token), ``classify`` (a probability for each class) and ``score``
(a cross-encoder's number for a pair of texts).
"""

import dataclasses
import importlib
import inspect
from typing import Any, Dict, Set, Tuple

from .. import Unsupported
from . import known

Json = Dict[str, Any]


def plan(task: str, generation: str, fields: Set[str], version: str) -> Json:
    """Engine arguments for a task: a runner and what the model is converted to, or up to 0.9 the task itself."""
    if task == "generate":
        return {}
    if generation == "V1" and not _v1_pools():
        raise known.without("pooling in V1", version)
    if generation == "V0" and not _v0_pools():
        raise known.without("pooling in V0", version)
    if "runner" in fields:
        return {"runner": "pooling", **_converted(task, fields)}
    if "task" not in fields:
        raise Unsupported("vLLM {} has no engine argument for the task {!r}".format(version, task))
    return {"task": "reward" if task == "token_embed" else task}


def _converted(task: str, fields: Set[str]) -> Json:
    if task in ("classify", "score"):
        return {}  # what the checkpoint says of itself
    if task == "embed":
        return {"convert": "embed"}
    if "token_embed" not in names():
        return {"convert": "reward"}
    from vllm.config import PoolerConfig

    given = {"task": "token_embed"} if hasattr(PoolerConfig, "task") else {"pooling_type": "ALL"}
    return {"convert": "embed", "pooler_config" if "pooler_config" in fields else "override_pooler_config": given}


def _v1_pools() -> bool:
    """Whether V1's scheduler tells its workers what a pooling request asks for: from 0.9 on. Before that a server ends at its start."""
    try:
        told = importlib.import_module("vllm.v1.core.sched.output").NewRequestData
    except (ImportError, AttributeError):
        return False
    return any(field.name == "pooling_params" for field in dataclasses.fields(told))


def _v0_pools() -> bool:
    """Whether V0's engine knows pooling requests: until 0.9. In 0.10 it takes them for others and breaks."""
    return hasattr(importlib.import_module("vllm.engine.llm_engine"), "PoolingParams")


def names() -> Tuple[str, ...]:
    """What this vLLM calls its pooling tasks; none where requests name no task."""
    try:
        return tuple(importlib.import_module("vllm.tasks").POOLING_TASKS)
    except (ImportError, AttributeError):
        return ()


def name_of(task: str) -> str:
    """Our task in this vLLM's words, for a request."""
    older = {"token_embed": "encode", "classify": "classify", "score": "classify"}
    return task if task in names() else older.get(task, task)


def params(task: str, engine: Any) -> Any:
    """PoolingParams of a request to an asynchronous engine, which name its task from 0.10 on.

    Where ``verify`` takes the task, vLLM's servers call it to fill in the model's defaults (later the engine does). Without that the engine
    core of 0.11 cannot read the request, and it waits for ever.
    """
    from vllm import PoolingParams

    known = getattr(PoolingParams, "__struct_fields__", ())
    asked = PoolingParams(**({"task": name_of(task)} if "task" in known else {}))
    verify = getattr(asked, "verify", None)
    if verify is not None and "task" in inspect.signature(verify).parameters:
        verify(asked.task, engine.model_config)
    return asked
