"""Runs in the target interpreter. Import vllm inside functions and return JSON values."""

from vllm_regress_target import Unsupported


def hybrid_load_balancing(model, start_rank):
    """Return whether a node with two of four ranks, the first of them `start_rank`, balances its own load."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    if not hasattr(AsyncEngineArgs, "data_parallel_start_rank"):
        raise Unsupported("this vLLM has no start rank of data parallelism", since="0.10.0")
    args = AsyncEngineArgs(
        model=model,
        max_model_len=256,
        data_parallel_size=4,
        data_parallel_size_local=2,
        data_parallel_start_rank=start_rank,
        data_parallel_address="127.0.0.1",
    )
    return bool(args.create_engine_config().parallel_config.data_parallel_hybrid_lb)
