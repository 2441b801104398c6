"""Build the tokenizer (pool) as this vLLM does from its engine arguments, and use it. Runs in the target interpreter."""

import inspect
from dataclasses import fields


def tokenize(model, pool_size, extra_config=None):
    """Ping the pool as vLLM does at start-up, then encode. Return the class of the tokenizer and the token ids."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm_regress_target import Unsupported, dialect

    if "tokenizer_pool_size" not in {field.name for field in fields(EngineArgs)}:
        raise Unsupported("vLLM {} has no tokenizer_pool_size".format(dialect.version()), until="0.9.2")
    from vllm.transformers_utils.tokenizer_group import init_tokenizer_from_configs

    arguments = EngineArgs(model=model, tokenizer_pool_size=pool_size, tokenizer_pool_extra_config=extra_config)
    config = arguments.create_engine_config()
    parameters = inspect.signature(init_tokenizer_from_configs).parameters
    group = init_tokenizer_from_configs(**{name: getattr(config, name) for name in parameters})
    if hasattr(group, "ping"):
        group.ping()
    return {"class": type(group).__name__, "token_ids": group.encode("hello")}
