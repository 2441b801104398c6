"""The V0 worker: vLLM's own logits processors and sampler over drawn logits."""

from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch
from vllm.distributed import broadcast_tensor_dict, get_pp_group, get_tp_group
from vllm.logger import init_logger
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.sampler import Sampler, SamplerOutput
from vllm.model_executor.sampling_metadata import SamplingMetadata
from vllm.platforms import current_platform
from vllm.sequence import PoolerOutput, PoolingSequenceGroupOutput
from vllm.worker.worker_base import WorkerBase

from . import DEVICE_NAME
from .adapters import Adapters, TakesAdapters
from .compat import SimulationGap
from .draw import Draw
from .embedded import prompt_tokens
from .groups import start_groups
from .pooling import Pooling
from .speech import Speech

logger = init_logger("vllm.vllm_regress_sim")

BLOCKS = 8192  # KV-cache blocks to speak of; never allocated
SWAP_BLOCKS = 1024


class SimWorker(TakesAdapters, WorkerBase):
    """One rank of a simulated V0 engine.

    Requests reach it as they reach a GPU worker: by reference in the engine's own process, pickled (logits processors and all)
    for another pipeline stage.
    """

    def __init__(
        self,
        vllm_config: Any,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(vllm_config=vllm_config)
        self.parallel_config.rank = rank
        self.local_rank = local_rank
        self.rank = rank
        self.distributed_init_method = distributed_init_method
        self.is_driver_worker = is_driver_worker
        self.generators: Dict[str, torch.Generator] = {}
        self.model_runner = _Runner(self)
        if vllm_config.speculative_config is not None:
            current_platform.Event = (
                None  # vLLM times its count of accepted drafts by CUDA's events, where a platform has events
            )

    def init_device(self) -> None:
        self.device = torch.device("cpu")
        runner = getattr(self.model_config, "runner_type", "generate")
        if runner not in ("generate", "transcription", "pooling"):  # who transcribes generates
            raise SimulationGap(f"the runner {runner!r}: the simulated device generates and pools")
        self._pools = runner == "pooling"
        start_groups(self)
        logger.info("%s (rank %d of %d)", DEVICE_NAME, self.rank, self.parallel_config.world_size)

    def load_model(self) -> None:
        """Reads no weights: prepares the draw and vLLM's sampler."""
        self._draw = Draw(self.model_config)
        self._adapters = Adapters(self.vllm_config)
        self._speech = Speech(
            self._draw, self.model_config, notes=self.is_driver_worker or get_tp_group().is_first_rank
        )
        self._pooling = Pooling(self._draw, self.model_config)
        self._processor = LogitsProcessor(self._draw.vocab_size, logits_as_input=True)
        self.sampler = Sampler()

    def get_model(self) -> Any:
        raise SimulationGap("the model itself was asked for, but none is loaded")

    def determine_num_available_blocks(self) -> Tuple[int, int]:
        longest = -(-self.model_config.max_model_len // self.cache_config.block_size)
        return max(BLOCKS, 2 * longest), SWAP_BLOCKS

    def sleep(self, level: int = 1) -> None:
        """Holds no memory to give up."""

    def wake_up(self, tags: Optional[List[str]] = None) -> None:
        """Nothing was given up."""

    def get_cache_block_size_bytes(self) -> int:
        return int(self.cache_config.block_size) * 1024

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Blocks are only counted."""
        self.cache_config.num_gpu_blocks = num_gpu_blocks
        self.cache_config.num_cpu_blocks = num_cpu_blocks

    def execute_model(self, execute_model_req: Optional[Any] = None) -> Optional[List[Any]]:
        """One step. The driver of a tensor-parallel group tells the others, who loop here until it sends nothing."""
        if get_tp_group().world_size > 1:
            if not self.is_driver_worker:
                return [] if broadcast_tensor_dict(src=0) else None
            broadcast_tensor_dict({} if execute_model_req is None else {"step": True}, src=0)
        if execute_model_req is None:
            return None
        if not execute_model_req.seq_group_metadata_list:
            return []
        if not get_pp_group().is_last_rank:
            return [None]
        if execute_model_req.async_callback:
            execute_model_req.async_callback()
        return [self._pool(execute_model_req) if self._pools else self._sample(execute_model_req)]

    def _pool(self, request: Any) -> PoolerOutput:
        """What each prompt is pooled to. V0 schedules the prompts of pooling models whole."""
        groups = request.seq_group_metadata_list
        prompts = [
            (list(each.get_token_ids()), group.pooling_params) for group in groups for each in group.seq_data.values()
        ]
        answers = [self._pooling.answer(tokens, params) for tokens, params in prompts]
        return PoolerOutput(outputs=[PoolingSequenceGroupOutput(answer) for answer in answers])

    @torch.inference_mode()
    def _sample(self, request: Any) -> SamplerOutput:
        groups = request.seq_group_metadata_list
        for ended in request.finished_requests_ids or ():
            self.generators.pop(ended, None)
        rows: List[np.ndarray] = []
        lengths, queried = [], []
        said: List[Any] = []  # of each sequence that samples: request, prompt, output, number of its row
        for group in groups:
            for sequence in group.seq_data.values():
                start, stop = _span(group, sequence)
                lengths.append(stop)
                queried.append(stop - start)
                tokens = _tokens(sequence)
                if group.is_prompt and group.sampling_params.prompt_logprobs is not None:
                    rows.extend(self._draw.within(tokens, start, stop - 1 if group.do_sample else stop))
                if group.do_sample:
                    prompt, output = tokens[: sequence.get_prompt_len()], tokens[sequence.get_prompt_len() : stop]
                    said.append((group.request_id, prompt, output, len(rows)))
                    adapter = self._adapters.mark(group.lora_request)
                    rows.append(self._speech.row(group.request_id, prompt, output, adapter))
        metadata = SamplingMetadata.prepare(groups, lengths, queried, "cpu", False, self.generators)
        logits = self._processor(None, self._draw.stack(rows), metadata)
        given = logits.clone()  # the sampler may write into its own
        sampled: SamplerOutput = self.sampler(logits, metadata)
        samples = [sample for group in sampled.outputs for sample in group.samples]
        for (request_id, prompt, output, row), sample in zip(said, samples):
            self._speech.heard(request_id, prompt, output, sample.output_token, given[row])
        return sampled


class _Runner:
    """What vLLM's speculative worker calls past this one, and sets: whether its sampler gives tensors of probabilities."""

    disable_logprobs = True

    def __init__(self, worker: SimWorker) -> None:
        self._worker = worker
        self.model_config = worker.model_config

    @property
    def model(self) -> SimWorker:
        """Where the sampler is up to 0.7."""
        return self._worker

    @property
    def sampler(self) -> Sampler:
        """Where it is from 0.8."""
        return self._worker.sampler

    def get_generators(self, finished_request_ids: Optional[Any] = None) -> Dict[str, torch.Generator]:
        return self._worker.generators


def _tokens(sequence: Any) -> List[int]:
    """Prompt and output of a sequence."""
    embeddings = getattr(sequence, "prompt_embeds", None)
    if embeddings is None:
        return list(sequence.get_token_ids())
    return prompt_tokens(None, embeddings) + list(sequence.get_output_token_ids())


def _span(group: Any, sequence: Any) -> Tuple[int, int]:
    """The positions a step computes for a sequence: a chunk of its prompt, or its last token."""
    if not group.is_prompt:
        return sequence.get_len() - 1, sequence.get_len()
    start = sequence.get_num_computed_tokens()
    return start, min(sequence.get_len(), start + group.token_chunk_size)
