"""Look for ids of requests in the scheduler. Runs in the target interpreter."""

from vllm_regress_target import Unsupported


def kept(engine, names):
    core = getattr(engine.llm_engine.engine_core, "engine_core", None)
    if core is None:
        raise Unsupported("the engine core runs in another process", lacks="engine core in its client")
    kept = {}
    for name, value in vars(core.scheduler).items():
        if isinstance(value, (dict, set)):
            count = sum(key in value for key in names)
            if count:
                kept[name] = count
    return kept
