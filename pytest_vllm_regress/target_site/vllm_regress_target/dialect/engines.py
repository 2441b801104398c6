"""What a spec means to the vLLM that is installed here.

Everything is found by looking at the installed package (dataclass fields, modules, the command's own parser). A combination that
this vLLM cannot do raises ``Unsupported`` with the reason. A version newer than any known is read the same way.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import json
import multiprocessing
import os
import re
import sys
import threading
from typing import Any, Dict, Iterator, List, Optional, Set

from .. import Unsupported, WrongRequest, gpu, spawning
from . import known, pooling, ray_nodes, speculation
from .installed import can_sleep, has_v0, has_v1, known_environment, v1_has_priorities
from .installed import version as version

Spec = Dict[str, Any]

_SERVER = "vllm.entrypoints.openai.api_server"


@dataclasses.dataclass
class Plan:
    """How to start an engine here: ``kwargs`` of EngineArgs, environment variables, remarks for the report, options of the server alone, and the
    GPUs of each node where a Ray of two nodes is to be there first (0: it is not)."""

    kwargs: Dict[str, Any]
    env: Dict[str, str]
    notes: List[str]
    server: Dict[str, Any] = dataclasses.field(default_factory=dict)
    node_gpus: int = 0


def warm(fronts: List[str]) -> None:
    """Import vLLM and do once what every engine start would do again. Raises what ``import vllm`` raises."""
    importlib.import_module("vllm")
    for name in (
        "vllm.engine.arg_utils",
        "vllm.entrypoints.llm",
        "vllm.v1.engine.async_llm",
        "vllm.v1.engine.core",
        "vllm.v1.executor.multiproc_executor",
        "vllm.executor.mp_distributed_executor",
    ):
        _import_if_there(name)
    if not _generation_is_read_at_import():
        _import_if_there("vllm.engine.async_llm_engine")
        if "serve" in fronts:
            for name in ("vllm.entrypoints.cli.main", "vllm.scripts", _SERVER):
                _import_if_there(name)
    if os.environ.get("VLLM_REGRESS_DEVICE") == "sim":
        from .. import sim

        sim.warm()
    if os.environ.get("VLLM_REGRESS_DEVICE") == "cpu":
        _choose_vector_instructions()


def refusal() -> Optional[str]:
    """Why no engine can run on this device with this vLLM, whatever its spec; None where engines can."""
    has_plugins = hasattr(importlib.import_module("vllm.platforms"), "resolve_current_platform_cls_qualname")
    if os.environ.get("VLLM_REGRESS_DEVICE") == "sim" and not has_plugins:
        return "vLLM {} has no platform plug-ins (they came with 0.7): on the simulated device it can run probes only".format(
            version()
        )
    return None


def plan(spec: Spec, front: str) -> Plan:
    """Translate an engine spec for ``front`` (offline, async or serve). Raises ``Unsupported``."""
    fields = engine_fields(front)
    made = Plan({}, dict(spec.get("env", {})), [], dict(spec.get("server_options", {})))
    _model(spec, made)
    _generation(spec, front, made)
    made.kwargs.update(pooling.plan(spec.get("task", "generate"), spec.get("generation", "auto"), fields, version()))
    _parallel(spec, front, fields, made)
    _tokenizer_pool(spec, fields, made)
    _structured_output(spec, fields, made)
    for name, value in spec.get("extra", {}).items():
        if name == speculation.ARGUMENT:
            made.kwargs.update(speculation.worded(value, spec, fields))
        elif name not in fields:
            raise known.lacks(name, version())
        else:
            made.kwargs[name] = value
    if made.kwargs.get("enable_sleep_mode") and not can_sleep():
        raise Unsupported("vLLM {} lets no engine sleep on this platform".format(version()), device=spec["device"])
    if "enforce_eager" in fields:
        made.kwargs.setdefault("enforce_eager", True)  # a spec that wants CUDA graphs says False
    if spec["device"] == "gpu":
        gpu.plan(spec, fields, made.kwargs, made.notes, version())
    if spec["device"] == "cpu":
        _cpu(made)
    if front == "serve" and made.kwargs.get("enable_lora"):
        made.env.setdefault("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")  # else a server loads none after its start
    _start_method(spec, front, made)
    return made


def _start_method(spec: Spec, front: str, made: Plan) -> None:
    if spec.get("model") == "speech":
        # What prepares sounds has used torch's threads, and an engine that is forked then waits for ever in torch (seen on 0.10.2; vLLM warns of it).
        made.env.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    elif front == "serve" and spec["device"] == "sim":
        # The vllm command asks for spawn so that CUDA can be used in the workers; without CUDA fork is sound, and much faster.
        made.env.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "fork")


def enter(made: Plan, front: str) -> None:
    """Set the plan's variables in this process and start what it needs, before the engine is made."""
    if made.node_gpus:
        made.env.update(ray_nodes.start(made.node_gpus))
    changed = [name for name, value in made.env.items() if os.environ.get(name) != value]
    os.environ.update(made.env)
    if front == "serve":
        _read_again(_SERVER, changed)
    if os.environ.get("VLLM_REGRESS_DEVICE") == "gpu":
        gpu.forget_devices()
    if _spawns(front) and spawning.quicken(os.getcwd()):
        made.notes.append("what vLLM spawns is forked from a process that has imported vLLM")
    if _generation_is_read_at_import():
        # This module chose between V0 and V1 when the agent imported it; a process of its own would have chosen by its own variable.
        importlib.reload(importlib.import_module("vllm.engine.async_llm_engine"))


def _read_again(module: str, variables: List[str]) -> None:
    """A module that the agent has imported, and that may have looked at one of the variables then: some routes exist by variables."""
    imported = sys.modules.get(module)
    if imported is not None and variables:
        source = inspect.getsource(imported)
        if any(name in source for name in variables):
            importlib.reload(imported)


def _spawns(front: str) -> bool:
    """vLLM's CPU platform wants no other method, and a V0 server none for its engine. On GPUs a spawned process is to be spawned."""
    device = os.environ.get("VLLM_REGRESS_DEVICE")
    return device == "cpu" or (device == "sim" and front == "serve")


def engine_fields(front: str = "offline") -> Set[str]:
    """Names of the engine arguments that this vLLM takes."""
    from vllm.engine import arg_utils

    kind = arg_utils.EngineArgs if front == "offline" else arg_utils.AsyncEngineArgs
    return {field.name for field in dataclasses.fields(kind)}


def make_offline(made: Plan) -> Any:
    """An ``LLM``."""
    from vllm import LLM

    with refusals():
        return LLM(**made.kwargs)


def make_async(made: Plan) -> Any:
    """An asynchronous engine of the generation asked for."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.engine.async_llm_engine import AsyncLLMEngine

    with refusals():
        return AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**made.kwargs))


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """What vLLM itself says it does not do becomes ``Unsupported`` in vLLM's words."""
    try:
        yield
    except Exception as error:
        lacking = re.search(r"Please install (vllm\[\w+\])", str(error))
        if lacking:
            raise Unsupported(str(error), needs=lacking.group(1)) from error
        # What a configuration checks of itself comes in pydantic's words.
        said = re.search(r"Value error, (.+?) \[type=", str(error))
        words = said.group(1) if said else str(error)
        refused = words if re.search(_REFUSAL, words) else None
        if refused is None and os.environ.get("VLLM_REGRESS_DEVICE") == "gpu":
            refused = gpu.refused_in_log()
        if refused:
            raise Unsupported(refused, refused_by="vLLM {}".format(version())) from error
        raise


_REFUSAL = (
    r"^VLLM_USE_V1=1 is not supported|^Invalid guided_decoding_backend\b|\bdoes not support\b|\bnot yet (supported|implemented)\b"
    r"|\bis not supported on current platform\b"
)


def _generation_is_read_at_import() -> bool:
    """0.7: modules decide between V0 and V1 when they are imported, so the warm agent must leave them to its children."""
    from vllm.engine.arg_utils import EngineArgs

    return "VLLM_USE_V1" in known_environment() and not hasattr(EngineArgs, "_is_v1_supported_oracle")


def generation_of(engine: Any) -> str:
    """V0 or V1, told by the class of the engine that is running."""
    inner = getattr(engine, "llm_engine", engine)
    return "V1" if type(inner).__module__.startswith("vllm.v1") else "V0"


def shut_down(engine: Any) -> Optional[str]:
    """Stop an engine through vLLM's own shutdown. Returns a remark when that never came back although its processes had ended.

    Up to 0.8.5 the V1 client's shutdown now and then waits for ever for its own output thread; the engine core is gone by then.
    """
    stopping = threading.Thread(target=shut_down_async, args=(engine,), daemon=True)
    stopping.start()
    stopping.join(_SHUTDOWN_S)
    while stopping.is_alive() and multiprocessing.active_children():
        stopping.join(0.2)  # the controller's deadline bounds this wait
    return "vLLM's own shutdown never came back; its engine processes had ended" if stopping.is_alive() else None


_SHUTDOWN_S = 4.0


def shut_down_async(engine: Any) -> None:
    """Stop an asynchronous engine through vLLM's own shutdown, on its own loop."""
    inner = getattr(engine, "llm_engine", engine)
    for owner, name in (
        (inner, "shutdown_background_loop"),
        (inner, "shutdown"),
        (getattr(inner, "engine_core", None), "shutdown"),
        (getattr(inner, "model_executor", None), "shutdown"),
        (getattr(getattr(inner, "engine", None), "model_executor", None), "shutdown"),
    ):
        stop = getattr(owner, name, None)
        if callable(stop):
            stop()
            if name == "shutdown":
                break
    ray = sys.modules.get("ray")
    if ray is not None:
        ray.shutdown()  # vLLM leaves a Ray that it started to the exit of the interpreter


def _model(spec: Spec, made: Plan) -> None:
    made.kwargs.update(model=spec["model_path"], max_model_len=spec["max_model_len"], seed=spec["seed"])
    if spec.get("dtype"):
        made.kwargs["dtype"] = spec["dtype"]


def _generation(spec: Spec, front: str, made: Plan) -> None:
    wanted = spec.get("generation", "auto")
    if wanted == "V1" and not has_v1():
        raise known.without("the V1 engine", version())
    if wanted == "V0" and not has_v0():
        raise known.without("the V0 engine", version())
    if wanted != "auto" and "VLLM_USE_V1" in known_environment():
        made.env["VLLM_USE_V1"] = "1" if wanted == "V1" else "0"
    if wanted == "V1" and spec.get("pipeline_parallel_size", 1) > 1 and _v1_refuses_pipelines():
        raise known.without("pipeline parallelism in V1", version())
    if wanted == "V1" and spec.get("extra", {}).get("scheduling_policy") == "priority" and not v1_has_priorities():
        raise known.without("priorities in V1", version())
    if wanted == "V0" and front == "offline" and spec.get("pipeline_parallel_size", 1) > 1:
        raise Unsupported(
            "V0 does pipeline parallelism only through the asynchronous engine: use front='async' or a server",
            needs="another front",
        )


def _v1_refuses_pipelines() -> bool:
    """0.7: the V1 executor asserts that there is one stage only, in a subprocess that takes its parents down with it."""
    with contextlib.suppress(ImportError, OSError):
        source = inspect.getsource(importlib.import_module("vllm.v1.executor.multiproc_executor"))
        return "not yet implemented in v1" in source
    return False


def _parallel(spec: Spec, front: str, fields: Set[str], made: Plan) -> None:
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        size = spec.get(name, 1)
        if size == 1:
            continue
        if name not in fields:
            raise known.lacks(name, version())
        made.kwargs[name] = size
    if spec.get("data_parallel_size", 1) > 1:
        if front == "offline":
            raise Unsupported(
                "one LLM object is one data-parallel rank: use front='async' or a server for data_parallel_size > 1",
                needs="another front",
            )
        if spec.get("generation") == "V0":
            raise Unsupported(
                "V0 has no data parallelism: the engine would wait for ranks that nobody starts", needs="the V1 engine"
            )
    executor = spec.get("executor", "auto")
    if executor in ("ray", ray_nodes.EXECUTOR):
        _ray(spec, made)
        executor = "ray"
    if executor != "auto":
        made.kwargs["distributed_executor_backend"] = (
            None if executor == "uni" and spec.get("generation") == "V0" else executor
        )


def _ray(spec: Spec, made: Plan) -> None:
    ranks = spec.get("tensor_parallel_size", 1) * spec.get("pipeline_parallel_size", 1)
    engines = spec.get("data_parallel_size", 1)
    two_nodes = spec["executor"] == ray_nodes.EXECUTOR
    if two_nodes and (ranks % 2 or engines > 1):
        raise WrongRequest(
            "executor={!r} gives each of two nodes half of the ranks of one engine: tensor_parallel_size times "
            "pipeline_parallel_size must be even (it is {}) and data_parallel_size 1 (it is {}). For one node say "
            "executor='ray'".format(ray_nodes.EXECUTOR, ranks, engines)
        )
    if importlib.util.find_spec("ray") is None:
        raise Unsupported("Ray is not installed beside vLLM {}".format(version()), needs="ray")
    if two_nodes and spec["device"] != "sim":
        raise Unsupported(
            "both nodes of executor={!r} are on this machine, with GPUs in Ray's books alone: on the simulated device "
            "only".format(ray_nodes.EXECUTOR),
            device=spec["device"],
        )
    if two_nodes:
        made.node_gpus = ranks // 2
    elif spec["device"] == "sim":
        # A local Ray is to believe in as many GPUs as there are ranks.
        made.env.setdefault("RAY_OVERRIDE_RESOURCES", json.dumps({"GPU": ranks * engines}))
    if spec["device"] == "sim":
        made.env.setdefault("VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE", "shm")  # not NCCL


def _tokenizer_pool(spec: Spec, fields: Set[str], made: Plan) -> None:
    """One axis, four meanings: Ray actor pool, accepted and ignored, removed, thread pool."""
    size = spec.get("tokenizer_pool_size")
    extra_config = spec.get("tokenizer_pool_extra_config")
    if size is None and extra_config is None:
        return
    if "tokenizer_pool_size" in fields:
        made.kwargs["tokenizer_pool_size"] = size or 0
        if extra_config is not None:
            made.kwargs["tokenizer_pool_extra_config"] = extra_config
        if not tokenizer_pool_is_ray():
            made.notes.append("vLLM {} accepts tokenizer_pool_size and ignores it".format(version()))
    elif "renderer_num_workers" in fields:
        if extra_config is not None:
            raise known.lacks("tokenizer_pool_extra_config", version())  # the thread pool takes no Ray settings
        made.kwargs["renderer_num_workers"] = max(1, size or 0)
        made.notes.append("tokenizer pool is the thread pool renderer_num_workers here")
    elif size or extra_config:
        raise known.lacks("tokenizer_pool_size", version())


def tokenizer_pool_is_ray() -> bool:
    """The pool of Ray actors is there (up to 0.8.4)."""
    parent = "vllm.transformers_utils.tokenizer_group"
    with contextlib.suppress(ImportError):
        return importlib.util.find_spec(parent + ".ray_tokenizer_group") is not None
    return False


def _structured_output(spec: Spec, fields: Set[str], made: Plan) -> None:
    backend = spec.get("structured_output_backend", "auto")
    if backend == "auto":
        return
    if "structured_outputs_config" in fields:
        made.kwargs["structured_outputs_config"] = {"backend": backend}
    elif "guided_decoding_backend" in fields:
        made.kwargs["guided_decoding_backend"] = backend
    else:
        raise known.lacks("guided_decoding_backend", version())


def _cpu(made: Plan) -> None:
    made.env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    if not {"gpu_memory_utilization", "kv_cache_memory_bytes"} & set(made.kwargs):  # the variable would hide them
        made.env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    made.kwargs.setdefault("dtype", "float32")  # in bfloat16 several wheels die on CPUs with AMX: docs/devices.md


def _choose_vector_instructions() -> None:
    """Let torch find out what its compiler may use, where each worker would: it asks an interpreter of its own for each set of instructions."""
    with contextlib.suppress(Exception):
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        if "CompilationMode.NONE" not in inspect.getsource(
            CPUModelRunner.warming_up_model
        ):  # else an eager engine compiles nothing
            importlib.import_module("torch._inductor.cpu_vec_isa").pick_vec_isa()


def _import_if_there(name: str) -> None:
    with contextlib.suppress(Exception):
        importlib.import_module(name)
