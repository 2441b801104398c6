"""The V1 worker: does everything a GPU worker does except run a network."""

from typing import Any, Optional

import torch
from vllm.distributed import get_pp_group
from vllm.sequence import IntermediateTensors
from vllm.v1.outputs import ModelRunnerOutput

from ..dialect import worker_v1
from ..dialect.pooling import task_names
from ..dialect.signatures import SimulationGap
from .batch import PersistentBatch, PoolingBatch
from .drafts import Drafter, join_logprobs
from .masks import GrammarMasks
from .platform import MEMORY
from .worker import BLOCKS, SimWorker

worker_v1.preload()
WorkerBase: Any = worker_v1.worker_base()
SAMPLES_SEPARATELY = worker_v1.samples_separately()
LogprobsTensors: Any = worker_v1.logprobs_tensors()
MASKS_COVER_DRAFTS = worker_v1.masks_cover_drafts()
PROMPT_ROWS = 256  # prompt positions scored at once


class SimWorkerV1(SimWorker, WorkerBase):  # type: ignore[misc,unused-ignore]
    """One rank of a simulated V1 engine."""

    def __init__(
        self,
        vllm_config: Any,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            vllm_config=vllm_config,
            local_rank=local_rank,
            rank=rank,
            distributed_init_method=distributed_init_method,
            **kwargs,
        )
        self._pending: Any = None
        self._drafts: Any = None  # request ids, draft of each
        self._transfers: Any = None

    # Startup

    def load_model(self, **kwargs: Any) -> None:
        """Prepare the logits, the batch and vLLM's sampler."""
        super().load_model(**kwargs)
        self._last = get_pp_group().is_last_rank
        self.model_runner = _Runner(self)
        if self._pools:
            self._tasks = self._pooling.tasks(task_names())
            self._pooling_batch = PoolingBatch(self._pooling)
            return
        self._drafter = (
            Drafter(self.vllm_config)
            if worker_v1.speculates(self.vllm_config) and self._last
            else None
        )
        block_size = worker_v1.layer_spec(self.vllm_config).block_size
        self._batch = PersistentBatch(
            self.vllm_config, self.device, self._synthetic.vocab_size, block_size
        )
        self._sampler = worker_v1.sampler(self.model_config)

    def get_supported_tasks(self) -> Any:
        return self._tasks if self._pools else worker_v1.generation_tasks(self.model_config)

    def get_supported_pooling_tasks(self) -> Any:
        """Return the pooling tasks, which vLLM 0.10.0 asks for by this name."""
        return self._tasks if self._pools else []

    def get_supported_kv_cache_layouts(self) -> list[str]:
        return ["NHD"]

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """Return one layer per pipeline stage, which is enough for vLLM's scheduler to manage real
        blocks."""
        return {
            f"model.layers.{get_pp_group().rank_in_group}.self_attn.attn": worker_v1.layer_spec(
                self.vllm_config
            )
        }

    def determine_available_memory(self) -> int:
        (spec,) = self.get_kv_cache_spec().values()
        longest = -(-self.model_config.max_model_len // spec.block_size)
        # Respect the share, so that vLLM itself rejects one that is too small.
        share = MEMORY * getattr(self.cache_config, "gpu_memory_utilization", 1.0)
        return min(int(share), int(spec.page_size_bytes) * max(BLOCKS, 2 * longest))

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Start the KV connector, if any. No cache is allocated."""
        if getattr(self.vllm_config, "kv_transfer_config", None) is not None:
            from .transfers import Transfers

            self._transfers = Transfers(self.vllm_config, kv_cache_config)

    initialize_kv_cache = initialize_from_config

    def initialize_cache(self, *args: Any, **kwargs: Any) -> None:
        """Store the numbers of blocks in vLLM's configuration. Nothing is allocated."""
        names = ("num_gpu_blocks", "num_cpu_blocks")
        for name, value in {**dict(zip(names, args)), **kwargs}.items():
            if name in names and isinstance(
                value, int
            ):  # up to 0.7.2 V1 passes its own configuration
                setattr(self.cache_config, name, value)

    def compile_or_warm_up_model(self) -> Any:
        return worker_v1.compilation_times()

    # Steps

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if self._transfers is None:
            return self._execute(scheduler_output)
        self._transfers.step(scheduler_output)
        return self._transfers.attach(self._execute(scheduler_output))

    def _execute(self, scheduler_output: Any) -> Any:
        if not self._last:
            return None if SAMPLES_SEPARATELY else worker_v1.empty_output()
        if self._pools:
            ids, vectors = self._pooling_batch.step(scheduler_output)
            places = {request_id: index for index, request_id in enumerate(ids)}
            return worker_v1.model_runner_output(
                {"req_ids": ids, "req_id_to_index": places, "pooler_output": vectors}
            )
        self._batch.update(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return worker_v1.empty_output()
        if SAMPLES_SEPARATELY:
            self._pending = scheduler_output
            return None
        return self._sample(scheduler_output, scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Execute the second half of a step, in versions that split steps."""
        scheduled, self._pending = self._pending, None
        if scheduled is None:
            return None
        output = self._sample(scheduled, grammar_output)
        return output if self._transfers is None else self._transfers.attach(output)

    @torch.inference_mode()
    def _sample(self, scheduled: Any, grammar: Any) -> ModelRunnerOutput:
        """Sample one token for each request, and more in the same step while a request follows its
        draft.

        Each further token is sampled as in a separate step, so drafts never change an answer.
        """
        rows, requests = self._batch.rows, self._batch.requests
        drafts = getattr(scheduled, "scheduled_spec_decode_tokens", None) or {}
        masks = GrammarMasks(grammar, drafts, MASKS_COVER_DRAFTS)
        prompts = self._prompt_logprobs(scheduled)
        ids = worker_v1.row_ids(rows)
        scheduled_requests = [requests[request_id] for request_id in ids]
        # Rows whose prompt is not completely computed yet are sampled like the others; their tokens
        # are discarded.
        active = [
            index
            for index, (request_id, request) in enumerate(zip(ids, scheduled_requests))
            if request.num_computed_tokens + scheduled.num_scheduled_tokens[request_id]
            >= request.num_tokens
        ]
        sampled: list[list[int]] = [[] for _ in scheduled_requests]
        logprobs: list[Any] = []
        while active or not logprobs:
            output = self._sample_once(active, masks, len(logprobs))
            tokens = worker_v1.sampled_tokens(output)
            for index in active:
                sampled[index] += tokens[index]
                scheduled_requests[index].output_token_ids.extend(tokens[index])
            logprobs.append(getattr(output, "logprobs_tensors", None))
            active = [
                index for index in active if _follows_draft(drafts.get(ids[index]), sampled[index])
            ]
            if active:
                self._batch.refresh()
        if self._drafter is not None:
            prompt_tokens = self._batch.prompts
            histories = [
                prompt_tokens[request_id] + requests[request_id].output_token_ids
                for request_id in ids
            ]
            self._drafts = (ids, self._drafter.propose(rows, sampled, histories))
        return worker_v1.model_runner_output(
            {
                "req_ids": ids,
                "req_id_to_index": dict(rows.req_id_to_index),
                "sampled_token_ids": sampled,
                "logprobs": join_logprobs(logprobs, sampled),
                "prompt_logprobs_dict": prompts,
                "spec_token_ids": self._drafts and self._drafts[1],
            }
        )

    def _sample_once(self, active: list[int], masks: GrammarMasks, position: int) -> Any:
        """Sample one token for every row.

        The random state of rows that are not `active` does not change.
        """
        rows, requests = self._batch.rows, self._batch.requests
        ids = worker_v1.row_ids(rows)
        rows_of_logits = [self._synthetic.blank()] * len(ids)
        for index in active:
            request_id = ids[index]
            request = requests[request_id]
            adapter = self._adapters.fingerprint(getattr(request, "lora_request", None))
            rows_of_logits[index] = self._scripted.row(
                request_id, self._batch.prompts[request_id], request.output_token_ids, adapter
            )
        logits = self._synthetic.stack(rows_of_logits)
        masks.apply(logits, rows.req_id_to_index, position)
        original = logits.clone()  # the sampler may overwrite its argument
        inactive = {
            index: generator for index, generator in rows.generators.items() if index not in active
        }
        states = {index: generator.get_state() for index, generator in inactive.items()}
        sampled = self._sampler(logits=logits, sampling_metadata=self._batch.metadata)
        for index, state in states.items():
            inactive[index].set_state(state)
        tokens = worker_v1.sampled_tokens(sampled)
        for index in active:
            request_id = ids[index]
            prompt, request = self._batch.prompts[request_id], requests[request_id]
            for token in tokens[index]:
                self._scripted.check_sampled(
                    request_id, prompt, request.output_token_ids, token, original[index]
                )
        return sampled

    def take_draft_token_ids(self) -> Any:
        """Return the drafts of the last step, in versions that ask for them; in others they are
        part of the output."""
        drafts, self._drafts = self._drafts, None
        return None if drafts is None else worker_v1.draft_token_ids(*drafts)

    def _prompt_logprobs(self, scheduled: Any) -> dict[str, Any]:
        logprobs: dict[str, Any] = {}
        if LogprobsTensors is None:
            return logprobs
        for request_id, count in scheduled.num_scheduled_tokens.items():
            prompt, request = self._batch.prompts[request_id], self._batch.requests[request_id]
            count_per_token = getattr(request.sampling_params, "prompt_logprobs", None)
            length = getattr(request, "num_prompt_tokens", len(prompt))
            before = request.num_computed_tokens
            if (
                count_per_token is None
                or request.output_token_ids
                or not before < length <= before + count
            ):
                continue
            every = self._synthetic.vocab_size
            logprobs[request_id] = self._score_prompt(
                prompt,
                # Not `prompt`, in which images have numbers that are no tokens.
                list(request.prompt_token_ids or prompt),
                every if count_per_token == -1 else count_per_token,
            )
        return logprobs

    def _score_prompt(self, prompt: list[int], tokens: list[int], count: int) -> Any:
        parts = []
        for start in range(0, len(prompt) - 1, PROMPT_ROWS):
            stop = min(start + PROMPT_ROWS, len(prompt) - 1)
            scores = self._sampler.compute_logprobs(
                torch.from_numpy(self._synthetic.within(prompt, start, stop))
            )
            target = torch.tensor(tokens[start + 1 : stop + 1], dtype=torch.int64)
            parts.append(self._sampler.gather_logprobs(scores, count, target)[:3])
        if not parts:
            shape = (0, count + 1)
            return LogprobsTensors(
                torch.zeros(shape, dtype=torch.int32),
                torch.zeros(shape),
                torch.zeros(0, dtype=torch.int32),
            )
        return LogprobsTensors(*(torch.cat(columns) for columns in zip(*parts)))

    # Other methods of a worker

    def execute_dummy_batch(self) -> None:
        """Do nothing: a simulated step does not need the other data-parallel ranks."""

    def check_health(self) -> None:
        return

    def reset_encoder_cache(self) -> None:
        """Do nothing: no image is encoded."""

    reset_mm_cache = reset_encoder_cache

    def get_kv_connector_handshake_metadata(self) -> Any:
        """Return the metadata that the KV connector shares with the connectors of other workers, or
        None."""
        return None if self._transfers is None else self._transfers.handshake()

    def profile(self, *args: Any, **kwargs: Any) -> None:
        raise SimulationGap("vLLM asked to profile the device, which is not simulated")

    def update_max_model_len(self, max_model_len: int) -> None:
        self.model_config.max_model_len = max_model_len


class _Runner:
    """The model runner that Ray's workers call directly.

    A pipeline stage passes on empty hidden states.
    """

    def __init__(self, worker: SimWorkerV1) -> None:
        self._worker = worker

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        output = self._worker.execute_model(scheduler_output)
        return output if get_pp_group().is_last_rank else IntermediateTensors({})

    def sample_tokens(self, grammar_output: Any) -> Any:
        return self._worker.sample_tokens(grammar_output)


def _follows_draft(draft: Optional[list[int]], sampled: list[int]) -> bool:
    """Whether the last sampled token is the one that was drafted for its position."""
    return (
        draft is not None and len(sampled) <= len(draft) and draft[len(sampled) - 1] == sampled[-1]
    )
