"""Preparing a process for an engine, making the engine and stopping it, and the parameters of its
requests, with whatever vLLM is installed."""

import functools
import glob
import importlib
import importlib.metadata
import inspect
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Optional

from .. import Unsupported, spawning
from . import commandline, gpu, known, ray_clusters
from .installed import generation_is_read_at_import, version
from .plan import Plan

_SERVER = "vllm.entrypoints.openai.api_server"
_SERVER_MODULES = (
    _SERVER,
    "vllm.scripts",
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.cli.run_batch",
    "vllm.entrypoints.cli.benchmark.main",
    "prometheus_fastapi_instrumentator",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
"""Modules that each server imports."""
_SHUTDOWN_S = 4.0


def warm() -> None:
    """Import vLLM and do once what every engine start would repeat.

    Raises what ``import vllm`` raises.
    """
    importlib.import_module("vllm")
    _remember_entry_points()
    for name in (
        "vllm.engine.arg_utils",
        "vllm.entrypoints.llm",
        "vllm.v1.engine.async_llm",
        "vllm.v1.engine.core",
        "vllm.v1.executor.multiproc_executor",
        "vllm.executor.mp_distributed_executor",
    ):
        _import_if_present(name)
    _import_ray_as_engines_do()
    if not generation_is_read_at_import():
        _import_if_present("vllm.engine.async_llm_engine")
        for name in (*_SERVER_MODULES, *_routers()):
            _import_if_present(name)
        with suppress(Exception):
            commandline.build_parser_for_children()
    if os.environ.get("VLLM_REGRESS_DEVICE") == "sim":
        from .. import sim

        sim.preload()
    if os.environ.get("VLLM_REGRESS_DEVICE") == "cpu":
        _choose_vector_instructions()
    importlib.metadata.entry_points()  # again: setuptools has added a folder to sys.path


def _import_if_present(name: str) -> None:
    with suppress(Exception):
        importlib.import_module(name)


def _remember_entry_points() -> None:
    """Read the entry points of the installed packages once for all children, until a folder of
    ``sys.path`` changes.

    vLLM asks for them several times in each process of an engine, and each time Python reads the
    metadata of all packages.
    """
    read_all = importlib.metadata.entry_points
    run_directory = os.getcwd()  # it is in sys.path, has no packages, and each child changes it

    @functools.lru_cache(maxsize=1)
    def read(folders: tuple[tuple[str, Optional[int]], ...]) -> Any:
        return read_all()

    def entry_points(**parameters: Any) -> Any:
        folders = (folder for folder in sys.path if folder != run_directory)
        everything = read(tuple((folder, _changed(folder)) for folder in folders))
        return everything.select(**parameters) if parameters else everything

    importlib.metadata.entry_points = entry_points
    entry_points()


def _changed(path: str) -> Optional[int]:
    """Return the modification time of a file or folder, or None if it does not exist.

    ``importlib.metadata`` compares the same times.
    """
    try:
        return os.stat(path or os.curdir).st_mtime_ns
    except OSError:
        return None


def _routers() -> list[str]:
    """Return the modules of vLLM that add routes to a server.

    Each server imports them when it builds its application.
    """
    package = os.path.dirname(sys.modules["vllm"].__file__ or "")
    files = glob.glob(os.path.join(package, "entrypoints", "**", "api_router.py"), recursive=True)
    return sorted(
        "vllm." + os.path.relpath(file, package)[: -len(".py")].replace(os.sep, ".")
        for file in files
    )


def _import_ray_as_engines_do() -> None:
    """Import Ray where each engine would, to ask whether Ray is running.

    In 0.17 this takes about half of the start.
    """
    with suppress(Exception):
        importlib.import_module("vllm.ray.lazy_utils").is_ray_initialized()


def _choose_vector_instructions() -> None:
    """Let torch determine which vector instructions its compiler may use; otherwise each worker
    starts an interpreter per instruction set."""
    with suppress(Exception):
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        # Versions that mention this mode compile nothing for an eager engine.
        if "CompilationMode.NONE" not in inspect.getsource(CPUModelRunner.warming_up_model):
            importlib.import_module("torch._inductor.cpu_vec_isa").pick_vec_isa()


def unsupported_reason() -> Optional[str]:
    """Return why this vLLM can run no engine at all on this device, or None if it can."""
    has_plugins = hasattr(
        importlib.import_module("vllm.platforms"), "resolve_current_platform_cls_qualname"
    )
    if os.environ.get("VLLM_REGRESS_DEVICE") == "sim" and not has_plugins:
        return f"vLLM {version()} has no platform plug-ins (they came with 0.7): on the simulated device it can run probes only"
    return None


def prepare_process(plan: Plan, front: str) -> None:
    """Set the plan's variables in this process and start what the engine needs.

    Call it before the engine is made.
    """
    if plan.node_gpus:
        plan.env.update(ray_clusters.start(plan.node_gpus))
    changed = [name for name, value in plan.env.items() if os.environ.get(name) != value]
    os.environ.update(plan.env)
    if front == "serve":
        _reload_if_affected(_SERVER, changed)
    if os.environ.get("VLLM_REGRESS_DEVICE") == "gpu":
        gpu.forget_devices()
    if _spawns(front) and spawning.install_fork_server(os.getcwd()):
        plan.notes.append("what vLLM spawns is forked from a process that has imported vLLM")
    if generation_is_read_at_import():
        # The agent's import of this module chose between V0 and V1; a fresh process would choose by
        # its own variable.
        importlib.reload(importlib.import_module("vllm.engine.async_llm_engine"))


def _reload_if_affected(module: str, variables: list[str]) -> None:
    """Reload a module that the agent has imported if its source mentions one of the changed
    variables; some server routes depend on variables."""
    imported = sys.modules.get(module)
    if imported is not None and variables:
        source = inspect.getsource(imported)
        if any(name in source for name in variables):
            importlib.reload(imported)


def _spawns(front: str) -> bool:
    """Return whether vLLM spawns processes that may be forked instead.

    Its CPU platform supports no other start method, nor does a V0 server for its engine. On GPUs a
    spawned process must be spawned.
    """
    device = os.environ.get("VLLM_REGRESS_DEVICE")
    return device == "cpu" or (device == "sim" and front == "serve")


def make_offline(plan: Plan) -> Any:
    """Make an ``LLM``."""
    from vllm import LLM

    with as_unsupported():
        return LLM(**_engine_arguments(plan))


def make_async(plan: Plan) -> Any:
    """Make an asynchronous engine of the planned generation."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.engine.async_llm_engine import AsyncLLMEngine

    with as_unsupported():
        return AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**_engine_arguments(plan)))


def _engine_arguments(plan: Plan) -> dict[str, Any]:
    """Return the arguments of the engine.

    Before 0.9.2 vLLM does not make a configuration from a dict.
    """
    transfers = plan.kwargs.get("kv_transfer_config")
    if not isinstance(transfers, dict):
        return plan.kwargs
    from vllm.config import KVTransferConfig

    return {**plan.kwargs, "kv_transfer_config": KVTransferConfig(**transfers)}


@contextmanager
def as_unsupported() -> Iterator[None]:
    """Turn vLLM's own statements that it does not support something into ``Unsupported``, with
    vLLM's text."""
    try:
        yield
    except Exception as error:
        missing = re.search(r"Please install (vllm\[\w+\])", str(error))
        if missing:
            raise Unsupported(str(error), needs=missing.group(1)) from error
        # pydantic wraps the message of a check in vLLM's configuration.
        wrapped = re.search(r"Value error, (.+?) \[type=", str(error))
        message = wrapped.group(1) if wrapped else str(error)
        device = os.environ.get("VLLM_REGRESS_DEVICE", "")
        if re.search(_NOT_SUPPORTED, message):
            here = device if re.search(_OF_THE_DEVICE, message) else ""
            raise Unsupported(message, refused_by=f"vLLM {version()}", device=here) from error
        if device == "gpu" and (refused := gpu.refusal_in_own_log()):
            raise Unsupported(refused, refused_by=f"vLLM {version()}", device=device) from error
        raise


_OF_THE_DEVICE = r"\bdevice type\b|\bon current platform\b|\bCompute Capability\b"
"""What vLLM refuses because of the device says nothing about the release."""
_NOT_SUPPORTED = (
    r"^VLLM_USE_V1=1 is not supported|^Invalid guided_decoding_backend\b|\bdoes not support\b|\bnot yet (supported|implemented)\b"
    r"|\bis not supported on current platform\b"
)


def generation_of(engine: Any) -> str:
    """Return the generation of a running engine, V0 or V1, by the module of its class."""
    inner = getattr(engine, "llm_engine", engine)
    return "V1" if type(inner).__module__.startswith("vllm.v1") else "V0"


def shut_down(engine: Any) -> Optional[str]:
    """Stop an engine by vLLM's own shutdown. Return a remark if that did not return although the
    engine's processes had ended.

    Up to 0.8.5 the shutdown of V1's client sometimes waits forever for its own output thread; the
    engine core has ended by then.
    """
    thread = threading.Thread(target=shut_down_async, args=(engine,), daemon=True)
    thread.start()
    thread.join(_SHUTDOWN_S)
    while thread.is_alive() and multiprocessing.active_children():
        thread.join(0.2)  # the controller's deadline ends this wait
    return (
        "vLLM's own shutdown never came back; its engine processes had ended"
        if thread.is_alive()
        else None
    )


def shut_down_async(engine: Any) -> None:
    """Stop an asynchronous engine by vLLM's own shutdown, on the engine's event loop."""
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
        ray.shutdown()  # vLLM leaves a Ray that it started running until the interpreter exits


def sampling_params(values: dict[str, Any], output_kind: Optional[str] = None) -> Any:
    """Return SamplingParams. ``structured_outputs`` is translated into what this vLLM takes."""
    from vllm import SamplingParams
    from vllm import sampling_params as module

    arguments = dict(values)
    if "logit_bias" in arguments:
        arguments["logit_bias"] = {
            int(token): bias for token, bias in arguments["logit_bias"].items()
        }  # JSON keys are strings
    structured = arguments.pop("structured_outputs", None)
    if structured is not None:
        if hasattr(module, "StructuredOutputsParams"):
            arguments["structured_outputs"] = module.StructuredOutputsParams(**structured)
        elif hasattr(module, "GuidedDecodingParams"):
            arguments["guided_decoding"] = module.GuidedDecodingParams(**structured)
        else:
            raise known.missing_feature("structured outputs in SamplingParams")
    if output_kind is not None:
        kinds = getattr(module, "RequestOutputKind", None)
        if kinds is None:
            raise known.missing_feature("RequestOutputKind")
        arguments["output_kind"] = kinds[output_kind.upper()]
    return SamplingParams(**arguments)


def adapter(values: dict[str, Any]) -> Any:
    """Return vLLM's LoRARequest for an adapter given by name, number and path."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(
        lora_name=values["name"], lora_int_id=values["number"], lora_path=values["path"]
    )
