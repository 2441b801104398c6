"""What the workers of V0 and V1 have in common: the device, process groups, LoRA adapters, and what a
device without memory has nothing to do for."""

import random
from typing import Any, Optional

import numpy as np
import torch
from vllm.distributed import get_tp_group
from vllm.logger import init_logger

from ..dialect.signatures import SimulationGap, call_with
from . import DEVICE_NAME
from .adapters import Adapters
from .pooling import Pooling
from .scripted_logits import ScriptedLogits
from .synthetic_logits import SyntheticLogits

logger = init_logger("vllm.vllm_regress_sim")

BLOCKS = 8192  # KV-cache blocks reported to vLLM; never allocated
_RUNNERS = ("generate", "auto", "transcription", "pooling")  # transcription generates text


class SimWorker:
    """One rank of a simulated engine, as a base of a worker class of vLLM."""

    model_config: Any
    vllm_config: Any
    parallel_config: Any
    rank: int

    def init_device(self) -> None:
        self.device = torch.device("cpu")
        runner = getattr(self.model_config, "runner_type", "generate")
        if runner not in _RUNNERS:
            raise SimulationGap(
                f"the runner {runner!r}: the simulated device only generates and pools"
            )
        self._pools = runner == "pooling"
        _start_process_groups(self)
        logger.info("%s (rank %d of %d)", DEVICE_NAME, self.rank, self.parallel_config.world_size)

    def load_model(self, **kwargs: Any) -> None:
        """Prepare the logits. Weights are not read."""
        self._synthetic = SyntheticLogits(self.model_config)
        self._adapters = Adapters(self.vllm_config)
        if self._pools:
            self._pooling = Pooling(self._synthetic, self.model_config)
            return
        reports = getattr(self, "is_driver_worker", False) or get_tp_group().is_first_rank
        self._scripted = ScriptedLogits(self._synthetic, self.model_config, reports)

    def get_model(self) -> Any:
        raise SimulationGap("vLLM asked for the model, but the simulated device loads none")

    def sleep(self, level: int = 1) -> None:
        """Do nothing: no memory is held."""

    def wake_up(self, tags: Optional[list[str]] = None) -> None:
        """Do nothing: ``sleep`` released nothing."""

    def add_lora(self, lora_request: Any) -> bool:
        return self._adapters.add(lora_request)

    def remove_lora(self, lora_id: int) -> bool:
        return self._adapters.remove(lora_id)

    def pin_lora(self, lora_id: int) -> bool:
        return lora_id in self._adapters.numbers()

    def list_loras(self) -> set[int]:
        return self._adapters.numbers()


def _start_process_groups(worker: Any) -> None:
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
