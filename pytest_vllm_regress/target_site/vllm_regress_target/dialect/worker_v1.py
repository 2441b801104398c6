"""What vLLM's V1 engine core sends to its workers, and what it expects back, in the form of the
installed version.

vLLM is imported inside the functions, because the agent imports this package before it imports
vLLM.
"""

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, Optional

from .signatures import SimulationGap, call_with, field_type, first_attribute, has_parameter


def preload() -> None:
    """Import the modules of vLLM that every worker needs, so that a process which forks workers
    imports them once."""
    for name in (
        "vllm.v1.worker.gpu_input_batch",
        "vllm.v1.sample.sampler",
        "vllm.v1.outputs",
        "vllm.v1.kv_cache_interface",
    ):
        importlib.import_module(name)


def scheduler_class() -> Any:
    """Return V1's scheduler, wherever this version has it."""
    try:
        from vllm.v1.core.sched.scheduler import Scheduler
    except ImportError:
        from vllm.v1.core.scheduler import Scheduler
    return Scheduler


def worker_base() -> Any:
    """Return the class from which V1 derives its workers."""
    try:
        from vllm.v1.worker.worker_base import WorkerBase
    except ImportError:
        return _WorkerBase
    return WorkerBase


class _WorkerBase:
    """Replacement for that class up to 0.7.2, where GPU workers derive from nothing."""

    def __init__(
        self,
        vllm_config: Any,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.cache_config = vllm_config.cache_config
        self.parallel_config = vllm_config.parallel_config
        self.parallel_config.rank = rank
        self.local_rank = local_rank
        self.rank = rank
        self.distributed_init_method = distributed_init_method


class CachedRequest(NamedTuple):
    """A request that the scheduler has sent before and schedules again.

    ``tokens`` are the output tokens that the scheduler sends with it: none up to 0.7.2, then those
    after the computed ones or, if the request sat out the previous step, all of them. ``end`` is the position after the
    last of them. ``output_count`` is the number of output tokens to keep, None if the scheduler
    does not say.
    """

    request_id: str
    computed: int
    tokens: list[int]
    end: int
    output_count: Optional[int]


def input_batch(vllm_config: Any, device: Any, vocab_size: int, block_size: int) -> Any:
    """Make vLLM's ``InputBatch``, the persistent batch of one worker."""
    from vllm.v1.worker.gpu_input_batch import InputBatch

    scheduler, model = vllm_config.scheduler_config, vllm_config.model_config
    blocks = -(-model.max_model_len // block_size) + 1
    return call_with(
        InputBatch,
        {
            "max_num_reqs": scheduler.max_num_seqs,
            "max_model_len": model.max_model_len,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_num_blocks_per_req": [blocks]
            if has_parameter(InputBatch, "block_sizes")
            else blocks,
            "device": device,
            "pin_memory": False,
            "vocab_size": vocab_size,
            "block_size": block_size,
            "block_sizes": [block_size],
            "kernel_block_sizes": _kernel_block_sizes(InputBatch, block_size),
            "logitsprocs": _logits_processors(InputBatch, vllm_config, device),
            "logitsprocs_need_output_token_ids": True,
            "is_spec_decode": speculates(vllm_config),
        },
    )


def _kernel_block_sizes(input_batch_class: Any, block_size: int) -> Any:
    """Return one list per cache group for older versions, one number per group for later ones."""
    annotation = str(input_batch_class.__init__.__annotations__.get("kernel_block_sizes", ""))
    return [[block_size]] if "list[list" in annotation.lower() else [block_size]


def _logits_processors(input_batch_class: Any, vllm_config: Any, device: Any) -> Any:
    """Make vLLM's V1 logits processors.

    None if the ``InputBatch`` makes them itself or this vLLM has none.
    """
    if not has_parameter(input_batch_class, "logitsprocs"):
        return None
    from vllm.v1.sample import logits_processor

    values = {
        "vllm_config": vllm_config,
        "device": device,
        "is_pin_memory": False,
        "is_pooling_model": False,
        "custom_logitsprocs": getattr(vllm_config.model_config, "logits_processors", None) or (),
        "pin_memory_available": False,
        "max_num_reqs": vllm_config.scheduler_config.max_num_seqs + 1,
    }
    return call_with(
        first_attribute(logits_processor, "build_logitsprocs", "init_builtin_logitsprocs"), values
    )


def request_state(new: Any, generator: Any) -> Any:
    """Make vLLM's ``CachedRequestState`` from a new request of the scheduler."""
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

    prefill = getattr(new, "prefill_token_ids", None) or []
    values = {name: getattr(new, name) for name in vars(new)}
    values.update(
        generator=generator, output_token_ids=list(prefill[len(new.prompt_token_ids or ()) :])
    )
    return call_with(CachedRequestState, values)


def embedded_prompt(new: Any) -> tuple[Any, Any]:
    """Return the prompt embeddings of a new request and which positions are tokens; None where
    there are none."""
    return getattr(new, "prompt_embeds", None), getattr(new, "prompt_is_token_ids", None)


def media(new: Any) -> Iterator[tuple[int, int, Any]]:
    """Yield the first position, the number of positions and the content of each image or sound of a
    new request.

    The content is the hash that vLLM makes of it; V1 up to 0.9 has none if nothing is cached, and
    the content is its tensors.
    """
    features = getattr(new, "mm_features", None)
    if features is not None:  # 0.11 and later
        parts = [(part.mm_position, part.identifier, None) for part in features]
    else:
        places = getattr(new, "mm_positions", None) or ()
        hashes, inputs = (
            getattr(new, name, None) or [None] * len(places) for name in ("mm_hashes", "mm_inputs")
        )
        parts = list(zip(places, hashes, inputs))
    for place, known, tensors in parts:
        yield *positions(place), known or tensors


def positions(place: Any) -> tuple[int, int]:
    """Return the first position of an image or sound and their number, from a mapping (older
    releases) or an object."""
    if isinstance(place, dict):
        return int(place["offset"]), int(place["length"])
    return int(place.offset), int(place.length)


def cached_requests(scheduled: Any) -> Iterator[CachedRequest]:
    """Read the known requests of a scheduler output: two lists of objects up to 0.7.1, then one
    list, and one object of columns in later versions."""
    cached = getattr(scheduled, "scheduled_cached_reqs", None)
    if cached is None:
        cached = scheduled.scheduled_resumed_reqs + scheduled.scheduled_running_reqs
    if isinstance(cached, list):
        for request in cached:
            tokens = getattr(request, "new_token_ids", [])
            computed = request.num_computed_tokens
            yield CachedRequest(request.req_id, computed, tokens, computed + len(tokens), None)
        return
    all_tokens = getattr(cached, "all_token_ids", None) or {}
    output_counts: Sequence[Optional[int]] = getattr(cached, "num_output_tokens", None) or [
        None
    ] * len(cached.req_ids)
    for index, request_id in enumerate(cached.req_ids):
        computed = cached.num_computed_tokens[index]
        tokens = cached.new_token_ids[index] if cached.new_token_ids else []
        end = computed + len(tokens)
        if request_id in all_tokens:
            tokens = all_tokens[request_id]
            end = len(tokens)
        yield CachedRequest(request_id, computed, tokens, end, output_counts[index])


def add_requests(rows: Any, requests: Sequence[Any], freed: list[int]) -> None:
    """Add requests to the ``InputBatch`` and close the gaps.

    ``freed`` are the rows whose requests were removed.
    """
    if has_parameter(
        rows.condense, "empty_req_indices"
    ):  # this version leaves it to the caller to track empty rows
        freed = sorted(freed, reverse=True)
        for request in requests:
            rows.add_request(request, freed.pop() if freed else None)
        if freed:
            rows.condense(freed)
    else:
        for request in requests:
            rows.add_request(request)
        rows.condense()


def row_ids(rows: Any) -> list[str]:
    """Return the requests of the ``InputBatch``; up to 0.7.2 it lists its empty rows, too."""
    return list(rows.req_ids[: rows.num_reqs])


def sampling_metadata(rows: Any, requests: Mapping[str, Any]) -> Any:
    """Return the sampling metadata of the ``InputBatch``, updated from the output tokens of its
    requests."""
    if hasattr(rows, "make_sampling_metadata"):  # up to 0.7.2
        return rows.make_sampling_metadata(
            {request_id: request.output_token_ids for request_id, request in requests.items()}
        )
    first_attribute(rows, "refresh_metadata", "refresh_sampling_metadata")()
    return rows.sampling_metadata


def sampler(model_config: Any) -> Any:
    """Make vLLM's sampler."""
    from vllm.v1.sample.sampler import Sampler

    return call_with(
        Sampler, {"logprobs_mode": getattr(model_config, "logprobs_mode", "raw_logprobs")}
    )


def sampled_tokens(output: Any) -> list[list[int]]:
    """Return the tokens of each row of a sampler's output: a vector up to 0.7.2, then a matrix."""
    tokens = output.sampled_token_ids
    return list(tokens.reshape(len(tokens), -1).tolist())


def logprobs_tensors() -> Any:
    """Return vLLM's class of log-probabilities, or None: V1 returns none up to 0.7.2."""
    from vllm.v1 import outputs

    return getattr(outputs, "LogprobsTensors", None)


def speculates(vllm_config: Any) -> bool:
    """Return whether the engine drafts tokens."""
    return getattr(vllm_config, "speculative_config", None) is not None


def samples_separately() -> bool:
    """Return whether ``execute_model`` returns None and ``sample_tokens`` the output (0.11 and
    later)."""
    return hasattr(worker_base(), "sample_tokens")


def masks_cover_drafts() -> bool:
    """Return whether the grammar bitmask has rows for draft tokens (0.9 and later)."""
    with suppress(ImportError):  # V1 of 0.7 has no structured output
        from vllm.v1.structured_output import StructuredOutputManager

        return has_parameter(
            StructuredOutputManager.grammar_bitmask, "scheduled_spec_decode_tokens"
        )
    return False


def logprobs_by_request() -> bool:
    """Return whether log-probabilities may have several rows for each request."""
    tensors = logprobs_tensors()
    return tensors is not None and has_parameter(tensors.tolists, "cu_num_generated_tokens")


def draft_token_ids(request_ids: list[str], drafts: list[list[int]]) -> Any:
    """Return the drafts as ``take_draft_token_ids`` reports them; None for versions that take them
    from the worker's output."""
    from vllm.v1 import outputs

    draft_class = getattr(outputs, "DraftTokenIds", None)
    return None if draft_class is None else draft_class(request_ids, drafts)


def empty_output() -> Any:
    """Return the output of a step in which nothing was sampled."""
    from vllm.v1 import outputs

    return getattr(outputs, "EMPTY_MODEL_RUNNER_OUTPUT", None) or model_runner_output({})


def model_runner_output(values: dict[str, Any]) -> Any:
    """Make vLLM's ``ModelRunnerOutput``; fields without a value and without a default become None."""
    from vllm.v1.outputs import ModelRunnerOutput

    required = (field.name for field in fields(ModelRunnerOutput) if _is_required(field))
    empty: dict[str, Any] = {
        "req_ids": [],
        "req_id_to_index": {},
        "sampled_token_ids": [],
        "prompt_logprobs_dict": {},
    }
    values = {
        **dict.fromkeys((*required, "logprobs", "pooler_output", "spec_token_ids")),
        **empty,
        **values,
    }
    rows, rows_type = (
        values["sampled_token_ids"],
        field_type(ModelRunnerOutput, "sampled_token_ids"),
    )
    if rows and "ndarray" in rows_type:
        import numpy as np

        values["sampled_token_ids"] = [np.asarray(row, dtype=np.int32) for row in rows]
    elif rows_type.count("ist[") == 1:  # up to 0.7.2 one token, which is ignored if there is none
        values["sampled_token_ids"] = [row[0] if row else 0 for row in rows]
    return call_with(ModelRunnerOutput, values)


def start_connector(vllm_config: Any, kv_cache_config: Any) -> None:
    """Make the worker side of the KV connector."""
    from vllm.distributed import kv_transfer

    call_with(
        kv_transfer.ensure_kv_transfer_initialized,
        {"vllm_config": vllm_config, "kv_cache_config": kv_cache_config},
    )


def connector_handshake(connector: Any) -> Any:
    """Return the connector's handshake metadata by rank, or None.

    The rank is (pipeline, tensor) where vLLM has pipelines of connectors.
    """
    from vllm.distributed import get_pp_group, get_tp_group
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    metadata = (
        connector.get_handshake_metadata() if hasattr(connector, "get_handshake_metadata") else None
    )
    if metadata is None:
        return None
    rank = get_tp_group().rank_in_group
    has_pipelines = hasattr(KVConnectorBase_V1, "set_xfer_handshake_metadata_pp_aware")
    return {(get_pp_group().rank_in_group, rank) if has_pipelines else rank: metadata}


def connector_output(connector: Any, scheduled: Any) -> dict[str, Any]:
    """Return what the connector has finished, as fields of a step's output:

    ``kv_connector_output``, or two sets of requests up to 0.10.0.
    """
    from vllm.v1 import outputs

    sending, receiving = connector.get_finished(scheduled.finished_req_ids)
    values: dict[str, Any] = {"finished_sending": sending, "finished_recving": receiving}
    if not hasattr(outputs, "KVConnectorOutput"):
        return values
    for name, method in (
        ("invalid_block_ids", "get_block_ids_with_load_errors"),
        ("kv_connector_stats", "get_kv_connector_stats"),
        ("kv_connector_worker_meta", "build_connector_worker_meta"),
    ):
        if hasattr(connector, method):
            values[name] = getattr(connector, method)()
    return {"kv_connector_output": call_with(outputs.KVConnectorOutput, values)}


def transfer_result(job_id: int) -> Any:
    """Return the result of a copy to or from host memory that succeeded."""
    for module in ("vllm.v1.kv_offload.base", "vllm.v1.kv_offload.worker.worker"):
        with suppress(ImportError):
            result: Any = getattr(importlib.import_module(module), "TransferResult", None)
            if hasattr(result, "__dataclass_fields__"):
                return call_with(result, {"job_id": job_id, "success": True})
    return job_id, True


def _is_required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def compilation_times() -> Any:
    """Return what ``compile_or_warm_up_model`` returns when nothing was compiled."""
    base = worker_base()
    times = getattr(sys.modules[base.__module__], "CompilationTimes", None)
    if times is not None:
        return times(0.0, 0.0)
    if not hasattr(base, "compile_or_warm_up_model"):
        return None
    returned = inspect.signature(base.compile_or_warm_up_model).return_annotation
    return 0.0 if returned in (float, "float") else None


def generation_tasks(model_config: Any) -> tuple[str, ...]:
    """Return the generation tasks that vLLM's own model runner would report: text, transcription or
    both."""
    info = getattr(model_config, "_model_info", None)
    if not getattr(info, "supports_transcription", False):
        return ("generate",)
    return (
        ("transcription",)
        if getattr(info, "supports_transcription_only", False)
        else ("generate", "transcription")
    )


def layer_spec(vllm_config: Any) -> Any:
    """Return the cache specification of one layer, full attention or a Mamba state, for vLLM's
    scheduler."""
    from vllm.v1 import kv_cache_interface

    model, cache = vllm_config.model_config, vllm_config.cache_config
    if model.is_attention_free:
        return _state_spec(kv_cache_interface, model, cache)
    return call_with(
        kv_cache_interface.FullAttentionSpec,
        {
            "block_size": cache.block_size or 16,
            "num_kv_heads": model.get_num_kv_heads(vllm_config.parallel_config),
            "head_size": model.get_head_size(),
            "dtype": model.dtype,
            "use_mla": False,
        },
    )


def _state_spec(kv_cache_interface: Any, model: Any, cache: Any) -> Any:
    spec_class = getattr(kv_cache_interface, "MambaSpec", None)
    if spec_class is None:
        raise SimulationGap("a model without attention in V1: this vLLM's V1 keeps no states")
    config = model.hf_config
    width = config.intermediate_size
    values = {
        "block_size": getattr(cache, "mamba_block_size", None) or model.max_model_len,
        "shapes": ((width, config.conv_kernel - 1), (width, config.state_size)),
        "dtype": model.dtype,
        "dtypes": (model.dtype, model.dtype),
        "mamba_cache_mode": getattr(cache, "mamba_cache_mode", "none"),
    }
    return call_with(spec_class, values)
