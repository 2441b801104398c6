"""Pooling arguments and parameters for the installed vLLM.

The tasks of this project are ``embed`` (one vector), ``token_embed`` (one vector per token),
``classify`` (one probability per class) and ``score`` (a cross-encoder's number for a pair of
texts).
"""

import dataclasses
import importlib
import inspect
from typing import Any, get_args

from .. import Unsupported
from . import known
from .installed import version

Json = dict[str, Any]


def plan(task: str, generation: str, fields: set[str]) -> Json:
    """Return the engine arguments for a task: a runner and a conversion of the model, or up to 0.9
    the task itself."""
    if task == "generate":
        return {}
    if generation == "V1" and not _v1_pools():
        raise known.missing_feature("pooling in V1")
    if generation == "V0" and not _v0_pools():
        raise known.missing_feature("pooling in V0")
    if "runner" in fields:
        return {"runner": "pooling", **_conversion(task, fields)}
    if "task" not in fields:
        raise Unsupported(
            f"vLLM {version()} has no engine argument for the task {task!r}",
            lacks="engine argument runner or task",
        )
    return {"task": "reward" if task == "token_embed" else task}


def _conversion(task: str, fields: set[str]) -> Json:
    if task in ("classify", "score"):
        return {}  # the checkpoint says so itself
    if task == "embed":
        return {"convert": "embed"}
    if "token_embed" not in task_names():
        return {"convert": "reward"}
    from vllm.config import PoolerConfig

    config = {"task": "token_embed"} if hasattr(PoolerConfig, "task") else {"pooling_type": "ALL"}
    return {
        "convert": "embed",
        "pooler_config" if "pooler_config" in fields else "override_pooler_config": config,
    }


def _v1_pools() -> bool:
    """Return whether V1's scheduler sends pooling parameters to its workers (0.9 and later).

    Before that a server fails at its start.
    """
    try:
        request_data = importlib.import_module("vllm.v1.core.sched.output").NewRequestData
    except (ImportError, AttributeError):
        return False
    return any(field.name == "pooling_params" for field in dataclasses.fields(request_data))


def _v0_pools() -> bool:
    """Return whether V0's engine knows pooling requests (up to 0.9).

    V0 of 0.10 takes them for generation requests and fails.
    """
    return hasattr(importlib.import_module("vllm.engine.llm_engine"), "PoolingParams")


def task_names() -> tuple[str, ...]:
    """Return vLLM's names of its pooling tasks; empty if requests have no task."""
    try:
        return tuple(importlib.import_module("vllm.tasks").POOLING_TASKS)
    except (ImportError, AttributeError):  # up to 0.10.0
        return get_args(
            getattr(importlib.import_module("vllm.pooling_params"), "PoolingTask", None)
        )


def name_of(task: str) -> str:
    """Return vLLM's name of our task, for a request."""
    older = {"token_embed": "encode", "classify": "classify", "score": "classify"}
    return task if task in task_names() else older.get(task, task)


def params(task: str, engine: Any) -> Any:
    """Return the PoolingParams of a request to an asynchronous engine. They have the task from 0.10
    on.

    If ``verify`` takes the task, vLLM's servers call it to fill in the model's defaults; in later
    versions the engine does. Without these defaults the engine core of 0.11 cannot read the
    request, and the request waits forever.
    """
    from vllm import PoolingParams

    fields = getattr(PoolingParams, "__struct_fields__", ())
    request = PoolingParams(**({"task": name_of(task)} if "task" in fields else {}))
    verify = getattr(request, "verify", None)
    if verify is not None and "task" in inspect.signature(verify).parameters:
        verify(request.task, engine.model_config)
    return request


def task_of(params: Any, model_config: Any) -> str:
    """Return the task of a request in vLLM's words: up to 0.9 it belongs to the model, later to
    each request."""
    return str(getattr(params, "task", None) or getattr(model_config, "task", None) or "")


def uses_activation(params: Any, older_name: str) -> bool:
    """Return whether a request wants its values normalized:

    ``use_activation``, before 0.12 a parameter called ``older_name``.
    """
    return False not in (getattr(params, "use_activation", None), getattr(params, older_name, None))


def classifies(model_config: Any) -> bool:
    """Return whether the model has a classification head, by its architecture or because vLLM
    converted it."""
    tasks = (getattr(model_config, "convert_type", None), getattr(model_config, "task", None))
    if "classify" in tasks or "score" in tasks:
        return True
    return any(
        "ForSequenceClassification" in name for name in model_config.hf_config.architectures or ()
    )
