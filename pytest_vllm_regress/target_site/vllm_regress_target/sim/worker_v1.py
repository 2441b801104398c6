"""The V1 worker: everything a GPU worker does, except running a network."""

import dataclasses
import inspect
from typing import Any, Dict, List, Optional

import numpy as np
import torch
from vllm.distributed import get_pp_group, get_tp_group
from vllm.logger import init_logger
from vllm.sequence import IntermediateTensors
from vllm.v1 import outputs
from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.worker_base import WorkerBase

from ..dialect.pooling import names
from . import DEVICE_NAME, caches
from .adapters import Adapters, TakesAdapters
from .batch import Batch, PoolingBatch
from .compat import SimulationGap, feed, field_type, generation_tasks, takes
from .drafts import Drafter, join_logprobs
from .draw import Draw
from .groups import start_groups
from .masks import Masks
from .platform import MEMORY
from .pooling import Pooling
from .speech import Speech

try:
    from vllm.v1 import structured_output
except ImportError:  # 0.7: V1 has none
    structured_output = None

logger = init_logger("vllm.vllm_regress_sim")

BLOCKS = 8192  # KV-cache blocks to speak of; never allocated
SAMPLES_APART = hasattr(WorkerBase, "sample_tokens")  # execute_model returns None, sample_tokens returns the output
MASKS_DRAFTS = structured_output is not None and takes(
    structured_output.StructuredOutputManager.grammar_bitmask, "scheduled_spec_decode_tokens"
)
PROMPT_ROWS = 256  # rows of prompt log-probabilities drawn at once


class SimWorker(TakesAdapters, WorkerBase):
    """One rank of a simulated V1 engine."""

    def __init__(
        self, vllm_config: Any, local_rank: int, rank: int, distributed_init_method: str, **kwargs: Any
    ) -> None:
        super().__init__(
            vllm_config=vllm_config,
            local_rank=local_rank,
            rank=rank,
            distributed_init_method=distributed_init_method,
            **kwargs,
        )
        self._pending: Any = None
        self._drafts: Any = None  # ids, and the draft of each

    # Start

    def init_device(self) -> None:
        self.device = torch.device("cpu")
        runner = getattr(self.model_config, "runner_type", "generate")
        if runner not in ("generate", "auto", "transcription", "pooling"):
            raise SimulationGap(f"the runner {runner!r}: the simulated device generates and pools")
        self._pools = runner == "pooling"
        start_groups(self)
        logger.info("%s (rank %d of %d)", DEVICE_NAME, self.rank, self.parallel_config.world_size)

    def load_model(self, **kwargs: Any) -> None:
        """Reads no weights: prepares the draw, the batch and vLLM's sampler."""
        self._draw = Draw(self.model_config)
        self._adapters = Adapters(self.vllm_config)
        self._last = get_pp_group().is_last_rank
        self.model_runner = _Runner(self)
        if self._pools:
            pooling = Pooling(self._draw, self.model_config)
            self._tasks, self._pooling = pooling.tasks(names()), PoolingBatch(pooling)
            return
        speculates = getattr(self.vllm_config, "speculative_config", None) is not None
        self._drafter = Drafter(self.vllm_config) if speculates and self._last else None
        self._speech = Speech(self._draw, self.model_config, notes=get_tp_group().is_first_rank)
        block_size = caches.layer(self.vllm_config).block_size
        self._batch = Batch(self.vllm_config, self.device, self._draw.vocab_size, block_size)
        self._sampler = feed(Sampler, {"logprobs_mode": getattr(self.model_config, "logprobs_mode", "raw_logprobs")})

    def get_model(self) -> Any:
        raise SimulationGap("the model itself was asked for, but none is loaded")

    def get_supported_tasks(self) -> Any:
        return self._tasks if self._pools else generation_tasks(self.model_config)

    def get_supported_kv_cache_layouts(self) -> List[str]:
        return ["NHD"]

    def get_kv_cache_spec(self) -> Dict[str, Any]:
        """One layer per pipeline stage: enough for vLLM's scheduler to manage real blocks."""
        return {f"model.layers.{get_pp_group().rank_in_group}.self_attn.attn": caches.layer(self.vllm_config)}

    def determine_available_memory(self) -> int:
        (spec,) = self.get_kv_cache_spec().values()
        longest = -(-self.model_config.max_model_len // spec.block_size)
        share = MEMORY * getattr(
            self.cache_config, "gpu_memory_utilization", 1.0
        )  # so that too little of it is vLLM's to refuse
        return min(int(share), int(spec.page_size_bytes) * max(BLOCKS, 2 * longest))

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """No cache is allocated."""

    initialize_kv_cache = initialize_from_config

    def initialize_cache(self, *args: Any, **kwargs: Any) -> None:
        """Blocks are only counted; vLLM keeps the count."""
        names = ("num_gpu_blocks", "num_cpu_blocks")
        for name, value in {**dict(zip(names, args)), **kwargs}.items():
            if name in names:
                setattr(self.cache_config, name, value)

    def compile_or_warm_up_model(self) -> Any:
        from vllm.v1.worker import worker_base

        times = getattr(worker_base, "CompilationTimes", None)
        if times is not None:
            return times(0.0, 0.0)
        returns = inspect.signature(WorkerBase.compile_or_warm_up_model).return_annotation
        return 0.0 if returns in (float, "float") else None

    # Steps

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._last:
            return None if SAMPLES_APART else _empty()
        if self._pools:
            ids, vectors = self._pooling.step(scheduler_output)
            places = {request_id: index for index, request_id in enumerate(ids)}
            return _fill(ids, places, [], None, {}, vectors)
        self._batch.update(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return _empty()
        if SAMPLES_APART:
            self._pending = scheduler_output
            return None
        return self._sample(scheduler_output, scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """The second half of a step, where a version has split it."""
        scheduled, self._pending = self._pending, None
        return None if scheduled is None else self._sample(scheduled, grammar_output)

    @torch.inference_mode()
    def _sample(self, scheduled: Any, grammar: Any) -> ModelRunnerOutput:
        """Sample, and go on in the same step as long as a request says what was drafted for it.

        Each further token is drawn as a step of its own would draw it, so drafts change no answer.
        """
        rows, requests = self._batch.rows, self._batch.requests
        drafts = getattr(scheduled, "scheduled_spec_decode_tokens", None) or {}
        masks = Masks(grammar, drafts, MASKS_DRAFTS)
        prompts = self._prompt_logprobs(scheduled)
        asked = [requests[request_id] for request_id in rows.req_ids]
        # Rows whose prompt is not wholly computed yet are sampled like the others, and thrown away.
        saying = [
            index
            for index, (request_id, request) in enumerate(zip(rows.req_ids, asked))
            if request.num_computed_tokens + scheduled.num_scheduled_tokens[request_id] >= request.num_tokens
        ]
        said: List[List[int]] = [[] for _ in asked]
        scores: List[Any] = []
        while saying or not scores:
            sampled = self._draw_once(saying, masks, len(scores))
            drawn = sampled.sampled_token_ids.tolist()
            for index in saying:
                said[index] += drawn[index]
                asked[index].output_token_ids.extend(drawn[index])
            scores.append(sampled.logprobs_tensors)
            saying = [index for index in saying if _holds(drafts.get(rows.req_ids[index]), said[index])]
            if saying:
                self._batch.refresh()
        if self._drafter is not None:
            prompted = self._batch.prompts
            histories = [prompted[each] + requests[each].output_token_ids for each in rows.req_ids]
            self._drafts = (list(rows.req_ids), self._drafter.propose(rows, said, histories))
        return _output(rows, said, join_logprobs(scores, said), prompts, self._drafts and self._drafts[1])

    def _draw_once(self, saying: List[int], masks: Masks, position: int) -> Any:
        """One token for every row; those that are not `saying` are left as they were."""
        rows, requests = self._batch.rows, self._batch.requests
        history = [self._draw.blank()] * len(rows.req_ids)
        for index in saying:
            request_id = rows.req_ids[index]
            request = requests[request_id]
            adapter = self._adapters.mark(request.lora_request)
            history[index] = self._speech.row(
                request_id, self._batch.prompts[request_id], request.output_token_ids, adapter
            )
        logits = self._draw.stack(history)
        masks.lay(logits, rows.req_id_to_index, position)
        given = logits.clone()  # the sampler may write into its own
        silent = {index: each for index, each in rows.generators.items() if index not in saying}
        states = {index: generator.get_state() for index, generator in silent.items()}
        sampled = self._sampler(logits=logits, sampling_metadata=rows.sampling_metadata)
        for index, state in states.items():
            silent[index].set_state(state)
        for index in saying:
            request_id = rows.req_ids[index]
            prompt, request = self._batch.prompts[request_id], requests[request_id]
            for token in sampled.sampled_token_ids[index].tolist():
                self._speech.heard(request_id, prompt, request.output_token_ids, token, given[index])
        return sampled

    def take_draft_token_ids(self) -> Any:
        """What was drafted since the last step, for versions that ask; before that it is part of the output."""
        taken, self._drafts = self._drafts, None
        drafts = getattr(outputs, "DraftTokenIds", None)
        return None if taken is None or drafts is None else drafts(*taken)

    def _prompt_logprobs(self, scheduled: Any) -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        for request_id, count in scheduled.num_scheduled_tokens.items():
            prompt, request = self._batch.prompts[request_id], self._batch.requests[request_id]
            asked = getattr(request.sampling_params, "prompt_logprobs", None)
            length = getattr(request, "num_prompt_tokens", len(prompt))
            before = request.num_computed_tokens
            if asked is None or request.output_token_ids or not before < length <= before + count:
                continue
            found[request_id] = self._score_prompt(prompt, self._draw.vocab_size if asked == -1 else asked)
        return found

    def _score_prompt(self, prompt: List[int], count: int) -> LogprobsTensors:
        parts = []
        for start in range(0, len(prompt) - 1, PROMPT_ROWS):
            stop = min(start + PROMPT_ROWS, len(prompt) - 1)
            scores = self._sampler.compute_logprobs(torch.from_numpy(self._draw.within(prompt, start, stop)))
            target = torch.tensor(prompt[start + 1 : stop + 1], dtype=torch.int64)
            parts.append(self._sampler.gather_logprobs(scores, count, target)[:3])
        if not parts:
            shape = (0, count + 1)
            return LogprobsTensors(
                torch.zeros(shape, dtype=torch.int32), torch.zeros(shape), torch.zeros(0, dtype=torch.int32)
            )
        return LogprobsTensors(*(torch.cat(columns) for columns in zip(*parts)))

    # The rest of a worker's duties

    def execute_dummy_batch(self) -> None:
        """Data-parallel engines keep step with each other; a simulated step needs no partner."""

    def check_health(self) -> None:
        return

    def sleep(self, level: int = 1) -> None:
        """Holds no memory to give up."""

    def wake_up(self, tags: Optional[List[str]] = None) -> None:
        """Nothing was given up."""

    def reset_encoder_cache(self) -> None:
        """No image is encoded."""

    reset_mm_cache = reset_encoder_cache

    def profile(self, *args: Any, **kwargs: Any) -> None:
        raise SimulationGap("a profile of the device was asked for")

    def update_max_model_len(self, max_model_len: int) -> None:
        self.model_config.max_model_len = max_model_len


class _Runner:
    """What Ray's workers call past the worker: here a stage's hidden states are made of nothing, but handed on."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker = worker

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        output = self._worker.execute_model(scheduler_output)
        return output if get_pp_group().is_last_rank else IntermediateTensors({})

    def sample_tokens(self, grammar_output: Any) -> Any:
        return self._worker.sample_tokens(grammar_output)


def _holds(draft: Optional[List[int]], said: List[int]) -> bool:
    """Whether the last token said is the one that was drafted there."""
    return draft is not None and len(said) <= len(draft) and draft[len(said) - 1] == said[-1]


def _empty() -> ModelRunnerOutput:
    return getattr(outputs, "EMPTY_MODEL_RUNNER_OUTPUT", None) or _fill([], {}, [], None, {})


def _output(
    rows: Any, tokens: List[List[int]], logprobs: Any, prompts: Dict[str, Any], drafts: Optional[List[List[int]]]
) -> ModelRunnerOutput:
    if "ndarray" in field_type(ModelRunnerOutput, "sampled_token_ids"):
        tokens = [np.asarray(row, dtype=np.int32) for row in tokens]  # type: ignore[misc]
    return _fill(list(rows.req_ids), dict(rows.req_id_to_index), tokens, logprobs, prompts, drafts=drafts)


def _fill(
    ids: Any,
    places: Any,
    tokens: Any,
    logprobs: Any,
    prompts: Any,
    vectors: Optional[List[Any]] = None,
    drafts: Optional[List[List[int]]] = None,
) -> ModelRunnerOutput:
    known = dict.fromkeys((field.name for field in dataclasses.fields(ModelRunnerOutput) if _required(field)))
    known.update(
        req_ids=ids,
        req_id_to_index=places,
        sampled_token_ids=tokens,
        logprobs=logprobs,
        prompt_logprobs_dict=prompts,
        pooler_output=vectors,
        spec_token_ids=drafts,
    )
    return feed(ModelRunnerOutput, known)


def _required(field: Any) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
