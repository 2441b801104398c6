"""Process groups of a worker, created by vLLM's own code with the gloo backend."""

import random
from typing import Any

import numpy as np
import torch

from ..dialect.signatures import call_with


def start_process_groups(worker: Any) -> None:
    """Create the world, tensor-parallel and pipeline-parallel groups of a worker, then set its
    random seed."""
    from vllm.distributed import parallel_state

    parallel = worker.parallel_config
    if hasattr(parallel_state, "set_custom_all_reduce"):
        parallel_state.set_custom_all_reduce(False)
    call_with(
        parallel_state.init_distributed_environment,
        {
            "world_size": parallel.world_size,
            "rank": worker.rank,
            "distributed_init_method": worker.distributed_init_method,
            "local_rank": worker.local_rank,
            "backend": "gloo",
        },
    )
    call_with(
        parallel_state.ensure_model_parallel_initialized,
        {
            "tensor_model_parallel_size": parallel.tensor_parallel_size,
            "pipeline_model_parallel_size": parallel.pipeline_parallel_size,
            "prefill_context_model_parallel_size": getattr(
                parallel, "prefill_context_parallel_size", 1
            ),
            "decode_context_model_parallel_size": getattr(
                parallel, "decode_context_parallel_size", 1
            ),
        },
    )
    seed = worker.model_config.seed
    if seed is not None:  # every rank draws the same numbers, as on a GPU
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        torch.default_generator.manual_seed(
            seed
        )  # only the CPU's generator: torch.manual_seed would also look for devices
