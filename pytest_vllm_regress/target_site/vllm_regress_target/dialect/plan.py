"""The translation of an engine spec into what the installed vLLM takes.

All decisions look at the installed package (dataclass fields, modules, the command's own parser)
and not at its version number, so that a version newer than any known one is read in the same way. A
combination that this vLLM does not support raises ``Unsupported`` with the reason.

A renamed engine argument is handled here, in the function that translates the field (``if
"new_name" in fields``). In ``extra`` a name is passed
on as it is: one that the installed vLLM does not have raises ``Unsupported`` with ``since`` or
``until`` from ``known.json``, which makes a case NOT_APPLICABLE, or ``WrongRequest`` if no vLLM has
it. ``known.json`` has version numbers, but only for these messages; no translation reads it.
"""

import importlib
import importlib.util
import inspect
import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .. import Unsupported, WrongRequest
from . import gpu, known, pooling, ray_clusters, speculation
from .installed import (
    can_sleep,
    engine_fields,
    has_ray_tokenizer_pool,
    has_v0,
    has_v1,
    known_environment,
    needs_preloaded_libraries,
    refuses_unbound_threads,
    v1_has_priorities,
    version,
)

Spec = dict[str, Any]


@dataclass
class Plan:
    """How to start an engine with the installed vLLM.

    Attributes:
        kwargs: arguments of ``EngineArgs``.
        env: environment variables of the engine's process.
        notes: remarks for the report.
        server: options of ``vllm serve`` that are not engine arguments.
        node_gpus: GPUs of each node of a Ray cluster of two nodes, which is started before the
            engine; 0 without such a cluster.
    """

    kwargs: dict[str, Any]
    env: dict[str, str]
    notes: list[str]
    server: dict[str, Any] = field(default_factory=dict)
    node_gpus: int = 0


def plan(spec: Spec, front: str) -> Plan:
    """Translate an engine spec for ``front`` (offline, async or serve).

    ``spec`` has every field of ``EngineSpec``, with its defaults. Raises ``Unsupported``, and
    ``WrongRequest`` for an argument that no vLLM has.
    """
    fields = engine_fields(front)
    result = Plan({}, dict(spec["env"]), [], dict(spec["server_options"]))
    _model(spec, result)
    _generation(spec, front, result)
    result.kwargs.update(pooling.plan(spec["task"], spec["generation"], fields))
    _parallel(spec, front, fields, result)
    _tokenizer_pool(spec, fields, result)
    _structured_output(spec, fields, result)
    _extra(spec, fields, result)
    if "enforce_eager" in fields:
        result.kwargs.setdefault("enforce_eager", True)  # a spec that needs CUDA graphs sets False
    if spec["device"] == "gpu":
        gpu.plan(spec, fields, result.kwargs, result.notes)
    if spec["device"] == "cpu":
        _cpu(spec, result)
    if front == "serve" and result.kwargs.get("enable_lora"):
        result.env.setdefault(
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True"
        )  # without it a running server loads no adapter
    start_method(spec, front, result)
    return result


def _model(spec: Spec, plan: Plan) -> None:
    plan.kwargs.update(
        model=spec["model_path"], max_model_len=spec["max_model_len"], seed=spec["seed"]
    )
    if spec["dtype"]:
        plan.kwargs["dtype"] = spec["dtype"]


def _generation(spec: Spec, front: str, plan: Plan) -> None:
    generation = spec["generation"]
    if generation == "V1" and not has_v1():
        raise known.missing_feature("the V1 engine")
    if generation == "V0" and not has_v0():
        raise known.missing_feature("the V0 engine")
    choose_generation(spec, plan)
    pipeline = spec["pipeline_parallel_size"] > 1
    if generation == "V1" and pipeline and _v1_refuses_pipelines():
        raise known.missing_feature("pipeline parallelism in V1")
    if generation == "V1" and spec["extra"].get("enable_lora") and _v1_refuses_adapters():
        raise known.missing_feature("LoRA in V1")
    if (
        generation == "V1"
        and spec["extra"].get("scheduling_policy") == "priority"
        and not v1_has_priorities()
    ):
        raise known.missing_feature("priorities in V1")
    if generation == "V0" and front == "offline" and pipeline:
        raise Unsupported(
            "V0 does pipeline parallelism only through the asynchronous engine: use front='async' or a server",
            lacks="pipeline parallelism in V0's LLM",
        )


def choose_generation(spec: Spec, plan: Plan) -> None:
    """Set the variable that chooses between V0 and V1, if the spec chooses and this vLLM has it."""
    if spec["generation"] != "auto" and "VLLM_USE_V1" in known_environment():
        plan.env["VLLM_USE_V1"] = "1" if spec["generation"] == "V1" else "0"


def _v1_refuses_pipelines() -> bool:
    """Return whether V1's executor asserts that there is one stage only (0.7)."""
    return _asserts("vllm.v1.executor.multiproc_executor", "not yet implemented in v1")


def _v1_refuses_adapters() -> bool:
    """Return whether V1's scheduler asserts that there is no LoRA (0.7.0 to 0.7.2)."""
    return _asserts("vllm.v1.core.scheduler", "V1 does not support LoRA")


def _asserts(module: str, message: str) -> bool:
    """Return whether a module of vLLM has this message.

    Asked before an engine starts, because the assertion fails in a subprocess that kills its
    parents.
    """
    with suppress(ImportError, OSError):
        return message in inspect.getsource(importlib.import_module(module))
    return False


def _parallel(spec: Spec, front: str, fields: set[str], plan: Plan) -> None:
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        size = spec[name]
        if size == 1:
            continue
        if name not in fields:
            raise known.missing_argument(name)
        plan.kwargs[name] = size
    if spec["data_parallel_size"] > 1:
        if front == "offline":
            raise Unsupported(
                "one LLM object is one data-parallel rank: use front='async' or a server for data_parallel_size > 1",
                lacks="data parallelism in one LLM",
            )
        if spec["generation"] == "V0":
            raise Unsupported(
                "V0 has no data parallelism: the engine would wait for ranks that nobody starts",
                lacks="data parallelism in V0",
            )
    executor = spec["executor"]
    if executor in ("ray", ray_clusters.EXECUTOR):
        _ray(spec, plan)
        executor = "ray"
    if executor != "auto":
        v0_in_process = executor == "uni" and spec["generation"] == "V0"
        plan.kwargs["distributed_executor_backend"] = None if v0_in_process else executor


def _ray(spec: Spec, plan: Plan) -> None:
    ranks = spec["tensor_parallel_size"] * spec["pipeline_parallel_size"]
    engines = spec["data_parallel_size"]
    two_nodes = spec["executor"] == ray_clusters.EXECUTOR
    if two_nodes and (ranks % 2 or engines > 1):
        raise WrongRequest(
            f"executor={ray_clusters.EXECUTOR!r} gives each of two nodes half of the ranks of one engine: tensor_parallel_size times "
            f"pipeline_parallel_size must be even (it is {ranks}) and data_parallel_size 1 (it is {engines}). For one node use "
            "executor='ray'"
        )
    if importlib.util.find_spec("ray") is None:
        raise Unsupported(f"Ray is not installed beside vLLM {version()}", needs="ray")
    if two_nodes and spec["device"] != "sim":
        raise Unsupported(
            f"both nodes of executor={ray_clusters.EXECUTOR!r} run on this machine and only pretend to have GPUs: on the simulated device "
            "only",
            device=spec["device"],
        )
    if two_nodes:
        plan.node_gpus = ranks // 2
    elif spec["device"] == "sim":
        # The local Ray must report one GPU for each rank.
        plan.env.setdefault("RAY_OVERRIDE_RESOURCES", json.dumps({"GPU": ranks * engines}))
    if (
        not two_nodes
        and os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == "0"
        and "VLLM_HOST_IP" not in os.environ
    ):
        plan.env.setdefault(
            "VLLM_HOST_IP", "127.0.0.1"
        )  # vLLM asks Ray for the node with its own address
    if spec["device"] == "sim":
        plan.env.setdefault("VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE", "shm")  # instead of NCCL


def _tokenizer_pool(spec: Spec, fields: set[str], plan: Plan) -> None:
    """Set the tokenizer pool, which means a Ray actor pool, nothing (accepted and ignored), an
    error or a thread pool, depending on the version."""
    size, extra_config = spec["tokenizer_pool_size"], spec["tokenizer_pool_extra_config"]
    if size is None and extra_config is None:
        return
    if "tokenizer_pool_size" in fields:
        plan.kwargs["tokenizer_pool_size"] = size or 0
        if extra_config is not None:
            plan.kwargs["tokenizer_pool_extra_config"] = extra_config
        if not has_ray_tokenizer_pool():
            plan.notes.append(f"vLLM {version()} accepts tokenizer_pool_size and ignores it")
    elif "renderer_num_workers" in fields:
        if extra_config is not None:
            raise known.missing_argument(
                "tokenizer_pool_extra_config"
            )  # Ray's settings; this is threads
        plan.kwargs["renderer_num_workers"] = max(1, size or 0)
        plan.notes.append("tokenizer pool is the thread pool renderer_num_workers here")
    elif size or extra_config:
        raise known.missing_argument("tokenizer_pool_size")


def _structured_output(spec: Spec, fields: set[str], plan: Plan) -> None:
    backend = spec["structured_output_backend"]
    if backend == "auto":
        return
    if "structured_outputs_config" in fields:
        plan.kwargs["structured_outputs_config"] = {"backend": backend}
    elif "guided_decoding_backend" in fields:
        plan.kwargs["guided_decoding_backend"] = backend
    else:
        raise known.missing_argument("guided_decoding_backend")


def _extra(spec: Spec, fields: set[str], plan: Plan) -> None:
    for name, value in spec["extra"].items():
        if name == speculation.ARGUMENT:
            plan.kwargs.update(speculation.translate(value, spec, fields))
        elif name not in fields:
            raise known.missing_argument(name)
        else:
            plan.kwargs[name] = value
    if plan.kwargs.get("enable_sleep_mode") and not can_sleep():
        raise Unsupported(
            f"vLLM {version()} does not support sleep mode on this platform",
            device=spec["device"],
        )


def _cpu(spec: Spec, plan: Plan) -> None:
    if refuses_unbound_threads():
        cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        ranks = (
            spec["tensor_parallel_size"]
            * spec["pipeline_parallel_size"]
            * spec["data_parallel_size"]
        )
        plan.env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "|".join([cpus] * ranks))
    cpu_variables(plan)
    plan.kwargs.setdefault(
        "dtype", "float32"
    )  # with bfloat16 several wheels crash on CPUs with AMX


def cpu_variables(plan: Plan) -> None:
    """Set the variables that an engine on the CPU needs, unless the plan does: unbound threads, a
    small KV cache, preloaded libraries."""
    if not refuses_unbound_threads():
        plan.env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    if not {"gpu_memory_utilization", "kv_cache_memory_bytes"} & set(
        plan.kwargs
    ):  # the variable would override them
        plan.env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if needs_preloaded_libraries():  # the loader ignores one that the machine does not have
        plan.env.setdefault("LD_PRELOAD", f"libtcmalloc_minimal.so.4:{sys.prefix}/lib/libiomp5.so")


def start_method(spec: Spec, front: str, plan: Plan) -> None:
    """Choose how vLLM starts its processes, where the spec's variables do not."""
    if spec["model"] in ("audio", "speech"):
        # Audio preprocessing has used torch's threads, and a forked engine then waits in torch
        # forever (seen with 0.10.2; vLLM warns about it).
        plan.env.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    elif front == "serve" and spec["device"] == "sim":
        # The vllm command requests spawn so that workers can use CUDA. Without CUDA fork is safe
        # and much faster.
        plan.env.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "fork")
