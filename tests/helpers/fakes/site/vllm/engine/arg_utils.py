import dataclasses


@dataclasses.dataclass
class EngineArgs:
    model: str
    max_model_len: int = 0
    seed: int = 0
    dtype: str = "auto"
    enforce_eager: bool = False
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int = 0


class AsyncEngineArgs(EngineArgs):
    pass
