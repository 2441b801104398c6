"""The V0 worker: vLLM's own logits processors and sampler on synthetic logits."""

from typing import Any, Optional

import numpy as np
import torch
from vllm.distributed import broadcast_tensor_dict, get_pp_group, get_tp_group
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.sampler import Sampler, SamplerOutput
from vllm.model_executor.sampling_metadata import SamplingMetadata
from vllm.platforms import current_platform
from vllm.sequence import PoolerOutput, PoolingSequenceGroupOutput
from vllm.worker.worker_base import WorkerBase

from ..dialect.worker_v1 import positions
from .synthetic_logits import prompt_tokens, with_media
from .worker import BLOCKS, SimWorker

SWAP_BLOCKS = 1024


class SimWorkerV0(SimWorker, WorkerBase):
    """One rank of a simulated V0 engine.

    Requests arrive as at a GPU worker: by reference in the engine's own process, pickled (with
    logits processors) for another pipeline stage.
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
        self.generators: dict[str, torch.Generator] = {}
        self._media: dict[str, list[tuple[int, int, Any]]] = {}
        self.model_runner = _Runner(self)
        if vllm_config.speculative_config is not None:
            # Without events, vLLM does not measure the count of accepted drafts with CUDA events.
            current_platform.Event = None

    def load_model(self, **kwargs: Any) -> None:
        """Prepare the logits and vLLM's sampler."""
        super().load_model(**kwargs)
        self._processor = LogitsProcessor(self._synthetic.vocab_size, logits_as_input=True)
        self.sampler = Sampler()

    def determine_num_available_blocks(self) -> tuple[int, int]:
        longest = -(-self.model_config.max_model_len // self.cache_config.block_size)
        return max(BLOCKS, 2 * longest), SWAP_BLOCKS

    def get_cache_block_size_bytes(self) -> int:
        return int(self.cache_config.block_size) * 1024

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Set the number of blocks. Nothing is allocated."""
        self.cache_config.num_gpu_blocks = num_gpu_blocks
        self.cache_config.num_cpu_blocks = num_cpu_blocks

    def execute_model(self, execute_model_req: Optional[Any] = None) -> Optional[list[Any]]:
        """Execute one step.

        The driver of a tensor-parallel group signals each step to the other ranks; an empty signal
        ends their loop.
        """
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
        """Answer pooling requests. V0 never splits the prompts of pooling models into chunks."""
        groups = request.seq_group_metadata_list
        prompts = [
            (list(sequence.get_token_ids()), group.pooling_params)
            for group in groups
            for sequence in group.seq_data.values()
        ]
        answers = [self._pooling.answer(tokens, params) for tokens, params in prompts]
        return PoolerOutput(outputs=[PoolingSequenceGroupOutput(answer) for answer in answers])

    @torch.inference_mode()
    def _sample(self, request: Any) -> SamplerOutput:
        groups = request.seq_group_metadata_list
        for finished in request.finished_requests_ids or ():
            self.generators.pop(finished, None)
            self._media.pop(finished, None)
        rows: list[np.ndarray] = []
        lengths, query_lengths = [], []
        sampling: list[
            Any
        ] = []  # for each sequence that samples: request, prompt, output, index of its row
        for group in groups:
            if media := _media(group):  # later steps of a request come without its images
                self._media[group.request_id] = media
            media = self._media.get(group.request_id, [])
            for sequence in group.seq_data.values():
                start, stop = _span(group, sequence)
                lengths.append(stop)
                query_lengths.append(stop - start)
                tokens = with_media(_tokens(sequence), media)
                if group.is_prompt and group.sampling_params.prompt_logprobs is not None:
                    rows.extend(
                        self._synthetic.within(tokens, start, stop - 1 if group.do_sample else stop)
                    )
                if group.do_sample:
                    prompt, output = (
                        tokens[: sequence.get_prompt_len()],
                        tokens[sequence.get_prompt_len() : stop],
                    )
                    sampling.append((group.request_id, prompt, output, len(rows)))
                    adapter = self._adapters.fingerprint(group.lora_request)
                    rows.append(self._scripted.row(group.request_id, prompt, output, adapter))
        metadata = SamplingMetadata.prepare(
            groups, lengths, query_lengths, "cpu", False, self.generators
        )
        logits = self._processor(None, self._synthetic.stack(rows), metadata)
        original = logits.clone()  # the sampler may overwrite its argument
        sampled: SamplerOutput = self.sampler(logits, metadata)
        samples = [sample for group in sampled.outputs for sample in group.samples]
        for (request_id, prompt, output, row), sample in zip(sampling, samples):
            self._scripted.check_sampled(
                request_id, prompt, output, sample.output_token, original[row]
            )
        return sampled


class _Runner:
    """The model runner that vLLM's speculative worker accesses directly, for example to make the
    sampler return probabilities."""

    disable_logprobs = True

    def __init__(self, worker: SimWorkerV0) -> None:
        self._worker = worker
        self.model_config = worker.model_config

    @property
    def model(self) -> SimWorkerV0:
        """Where vLLM looks for the sampler up to 0.7."""
        return self._worker

    @property
    def sampler(self) -> Sampler:
        """Where vLLM looks for the sampler from 0.8 on."""
        return self._worker.sampler

    def get_generators(
        self, finished_request_ids: Optional[Any] = None
    ) -> dict[str, torch.Generator]:
        return self._worker.generators


def _tokens(sequence: Any) -> list[int]:
    """Return prompt and output of a sequence."""
    embeddings = getattr(sequence, "prompt_embeds", None)
    if embeddings is None:
        return list(sequence.get_token_ids())
    return prompt_tokens(None, embeddings) + list(sequence.get_output_token_ids())


def _media(group: Any) -> list[tuple[int, int, Any]]:
    """Return the first position, the number of positions and the content of each image or sound of
    a request. V0 does not say which tensors belong to which: each has all those of its kind."""
    contents = getattr(group, "multi_modal_data", None) or {}
    places = getattr(group, "multi_modal_placeholders", None) or {}  # since 0.6.4
    return [(*positions(place), contents) for kind in places for place in places[kind]]


def _span(group: Any, sequence: Any) -> tuple[int, int]:
    """Return the range of positions that a step computes: a chunk of the prompt, or the last token."""
    if not group.is_prompt:
        return sequence.get_len() - 1, sequence.get_len()
    start = sequence.get_num_computed_tokens()
    return start, min(sequence.get_len(), start + group.token_chunk_size)
