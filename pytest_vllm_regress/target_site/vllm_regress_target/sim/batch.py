"""A V1 worker's requests, kept in vLLM's own CachedRequestState and InputBatch.

What vLLM's GPU model runner does between a scheduler output and its sampler happens here with vLLM's own classes, so that
their bugs (a wrong mask row, a stop token outside the vocabulary) show as they do on a GPU. Only the block table is left alone
after a request was added: nothing reads a KV cache.
"""

from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from vllm.sampling_params import SamplingType
from vllm.v1.worker import gpu_input_batch
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from .compat import feed, first_attribute, takes
from .embedded import prompt_tokens
from .pooling import Pooling


class Batch:
    """The persistent batch of one worker.

    Attributes:
        requests: every request the scheduler has told of and not yet finished, by id.
        prompts: the tokens of each; what was given as an embedding has a number below zero.
        rows: vLLM's InputBatch: those scheduled in the current step, in the order of the logits' rows.
    """

    def __init__(self, vllm_config: Any, device: torch.device, vocab_size: int, block_size: int) -> None:
        self.device = device
        self.requests: Dict[str, Any] = {}
        self.prompts: Dict[str, List[int]] = {}
        scheduler, model = vllm_config.scheduler_config, vllm_config.model_config
        blocks = -(-model.max_model_len // block_size) + 1
        per_group = takes(InputBatch, "block_sizes")
        logitsprocs = _logits_processors(vllm_config, device, scheduler.max_num_seqs)
        self.rows = feed(
            InputBatch,
            {
                "max_num_reqs": scheduler.max_num_seqs,
                "max_model_len": model.max_model_len,
                "max_num_batched_tokens": scheduler.max_num_batched_tokens,
                "max_num_blocks_per_req": [blocks] if per_group else blocks,
                "device": device,
                "pin_memory": False,
                "vocab_size": vocab_size,
                "block_size": block_size,
                "block_sizes": [block_size],
                "kernel_block_sizes": _kernel_block_sizes(block_size),
                "logitsprocs": logitsprocs,
                "logitsprocs_need_output_token_ids": True,
                "is_spec_decode": getattr(vllm_config, "speculative_config", None) is not None,
            },
        )

    def update(self, scheduled: Any) -> None:
        """Take over one scheduler output: requests that ended, came, went on, or sit this step out."""
        freed = []
        for request_id in scheduled.finished_req_ids:
            self.requests.pop(request_id, None)
            self.prompts.pop(request_id, None)
            freed.append(self.rows.remove_request(request_id))
        for request_id in set(self.rows.req_id_to_index) - set(scheduled.num_scheduled_tokens):
            freed.append(self.rows.remove_request(request_id))
        for new in scheduled.scheduled_new_reqs:
            if new.req_id in self.rows.req_id_to_index:  # preempted, and sent again as if it were new
                freed.append(self.rows.remove_request(new.req_id))
            self.requests[new.req_id] = self._state(new)
            embeddings = getattr(new, "prompt_embeds", None)
            are_tokens = getattr(new, "prompt_is_token_ids", None)
            self.prompts[new.req_id] = prompt_tokens(new.prompt_token_ids, embeddings, are_tokens)
        cached = scheduled.scheduled_cached_reqs
        kept = dict(zip(cached.req_ids, cached.num_output_tokens)) if hasattr(cached, "num_output_tokens") else {}
        for request_id, computed, tokens, end in _continued(cached):
            request = self.requests[request_id]
            request.num_computed_tokens = computed
            if request_id in kept:
                del request.output_token_ids[kept[request_id] :]
            unseen = end - request.num_tokens
            if tokens and unseen > 0:
                request.output_token_ids.extend(tokens[-unseen:])
        self._seat(scheduled.num_scheduled_tokens, [index for index in freed if index is not None])

    def _state(self, new: Any) -> Any:
        params = new.sampling_params
        generator = None
        if params is not None and params.sampling_type == SamplingType.RANDOM_SEED:
            generator = torch.Generator(device=self.device)
            generator.manual_seed(params.seed)
        prefill = getattr(new, "prefill_token_ids", None) or []
        known = {name: getattr(new, name) for name in vars(new)}
        known.update(generator=generator, output_token_ids=list(prefill[len(new.prompt_token_ids or ()) :]))
        return feed(CachedRequestState, known)

    def _seat(self, scheduled: Dict[str, int], freed: List[int]) -> None:
        rows = self.rows
        coming = [request_id for request_id in scheduled if request_id not in rows.req_id_to_index]
        if takes(rows.condense, "empty_req_indices"):  # the caller keeps account of empty rows
            freed.sort(reverse=True)
            for request_id in coming:
                rows.add_request(self.requests[request_id], freed.pop() if freed else None)
            if freed:
                rows.condense(freed)
        else:
            for request_id in coming:
                rows.add_request(self.requests[request_id])
            rows.condense()
        self.refresh()

    def refresh(self) -> None:
        """Tell vLLM's logits processors and sampler what the requests have said since."""
        first_attribute(self.rows, "refresh_metadata", "refresh_sampling_metadata")()


class PoolingBatch:
    """The pooling requests of a V1 worker: each is answered in the step that computes the last of its prompt."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._prompts: Dict[str, List[int]] = {}
        self._computed: Dict[str, int] = {}
        self._asked: Dict[str, Tuple[Any, int]] = {}  # parameters, and where computing began

    def step(self, scheduled: Any) -> Tuple[List[str], List[Optional[torch.Tensor]]]:
        """Take over one scheduler output: the scheduled requests, and the answer to each or None where its prompt is not wholly computed."""
        for request_id in scheduled.finished_req_ids:
            self._prompts.pop(request_id, None)
            self._asked.pop(request_id, None)
        for new in scheduled.scheduled_new_reqs:
            self._prompts[new.req_id] = list(new.prompt_token_ids)
            self._computed[new.req_id] = new.num_computed_tokens
            self._asked[new.req_id] = getattr(new, "pooling_params", None), new.num_computed_tokens
        for request_id, computed, _, _ in _continued(scheduled.scheduled_cached_reqs):
            self._computed[request_id] = computed
        ids = list(scheduled.num_scheduled_tokens)
        return ids, [self._answer(request_id, scheduled.num_scheduled_tokens[request_id]) for request_id in ids]

    def _answer(self, request_id: str, count: int) -> Optional[torch.Tensor]:
        prompt = self._prompts[request_id]
        if self._computed[request_id] + count < len(prompt):
            return None
        params, start = self._asked[request_id]
        return self._pooling.answer(prompt, params, start)


def _continued(cached: Any) -> Iterator[Tuple[str, int, List[int], int]]:
    """(id, computed tokens, told tokens, position after the last of them) of each known request.

    Told are the tokens after the computed ones, or, where the request sat out the step before, all it has.
    """
    if isinstance(cached, list):
        for one in cached:
            yield (
                one.req_id,
                one.num_computed_tokens,
                one.new_token_ids,
                one.num_computed_tokens + len(one.new_token_ids),
            )
        return
    everything = getattr(cached, "all_token_ids", None) or {}
    for index, request_id in enumerate(cached.req_ids):
        computed = cached.num_computed_tokens[index]
        tokens = cached.new_token_ids[index] if cached.new_token_ids else []
        known = everything.get(request_id)
        yield (
            (request_id, computed, tokens, computed + len(tokens))
            if known is None
            else (request_id, computed, known, len(known))
        )


def _logits_processors(vllm_config: Any, device: torch.device, max_num_reqs: int) -> Any:
    """vLLM's own V1 logits processors, or None where the InputBatch makes them itself or this vLLM has none."""
    if not takes(InputBatch, "logitsprocs"):
        return None
    from vllm.v1.sample import logits_processor

    known = {
        "vllm_config": vllm_config,
        "device": device,
        "is_pin_memory": False,
        "is_pooling_model": False,
        "custom_logitsprocs": getattr(vllm_config.model_config, "logits_processors", None) or (),
        "pin_memory_available": False,
        "max_num_reqs": max_num_reqs + 1,
    }
    return feed(first_attribute(logits_processor, "build_logitsprocs", "init_builtin_logitsprocs"), known)


def _kernel_block_sizes(block_size: int) -> Any:
    """One list per group at first, one number per group later."""
    annotation = str(InputBatch.__init__.__annotations__.get("kernel_block_sizes", ""))
    return [[block_size]] if "list[list" in annotation.lower() else [block_size]


__all__ = ["Batch", "PoolingBatch", "gpu_input_batch"]
