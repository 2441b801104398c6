"""The requests of a V1 worker, kept in vLLM's own CachedRequestState and InputBatch.

Between a scheduler output and the sampler, this module does with vLLM's own classes what vLLM's GPU
model runner does. Their bugs (a wrong mask row, a stop token outside the vocabulary) therefore show
as they do on a GPU. Only the block table is not updated after a request was added, because nothing
reads a KV cache. What differs between vLLM versions is in ``dialect/worker_v1.py``.
"""

from typing import Any, Optional

import torch
from vllm.sampling_params import SamplingType

from ..dialect import worker_v1
from .pooling import Pooling
from .synthetic_logits import prompt_tokens, with_media


class PersistentBatch:
    """The persistent batch of one worker.

    Attributes:
        requests: every unfinished request that the scheduler has sent, by id.
        prompts: the prompt tokens of each request. An embedded position has a number below zero.
        rows: vLLM's InputBatch: the requests scheduled in the current step, in the order of the
            logits' rows.
        metadata: vLLM's SamplingMetadata of these rows.
    """

    def __init__(
        self, vllm_config: Any, device: torch.device, vocab_size: int, block_size: int
    ) -> None:
        self.device = device
        self.requests: dict[str, Any] = {}
        self.prompts: dict[str, list[int]] = {}
        self.rows = worker_v1.input_batch(vllm_config, device, vocab_size, block_size)
        self.metadata: Any = None

    def update(self, scheduled: Any) -> None:
        """Apply one scheduler output: requests that finished, are new, continue, or are not
        scheduled in this step."""
        freed = self._remove_rows(scheduled)
        for new in scheduled.scheduled_new_reqs:
            self.requests[new.req_id] = worker_v1.request_state(
                new, self._generator(new.sampling_params)
            )
            prompt = prompt_tokens(new.prompt_token_ids, *worker_v1.embedded_prompt(new))
            self.prompts[new.req_id] = with_media(prompt, worker_v1.media(new))
        for cached in worker_v1.cached_requests(scheduled):
            request = self.requests[cached.request_id]
            request.num_computed_tokens = cached.computed
            if cached.output_count is not None:
                del request.output_token_ids[cached.output_count :]
            unseen = cached.end - request.num_tokens
            if cached.tokens and unseen > 0:
                request.output_token_ids.extend(cached.tokens[-unseen:])
        added = [
            self.requests[request_id]
            for request_id in scheduled.num_scheduled_tokens
            if request_id not in self.rows.req_id_to_index
        ]
        worker_v1.add_requests(self.rows, added, freed)
        self.refresh()

    def _remove_rows(self, scheduled: Any) -> list[int]:
        """Remove requests that finished or are not scheduled. Returns the rows that became free."""
        finished = list(scheduled.finished_req_ids)
        for request_id in finished:
            self.requests.pop(request_id, None)
            self.prompts.pop(request_id, None)
        freed = [self.rows.remove_request(request_id) for request_id in finished]
        for request_id in set(self.rows.req_id_to_index) - set(scheduled.num_scheduled_tokens):
            freed.append(self.rows.remove_request(request_id))
        for new in scheduled.scheduled_new_reqs:
            if (
                new.req_id in self.rows.req_id_to_index
            ):  # a preempted request is sent again as a new one
                freed.append(self.rows.remove_request(new.req_id))
        return [index for index in freed if index is not None]

    def _generator(self, params: Any) -> Optional[torch.Generator]:
        if params is None or params.sampling_type != SamplingType.RANDOM_SEED:
            return None
        generator = torch.Generator(device=self.device)
        generator.manual_seed(params.seed)
        return generator

    def refresh(self) -> None:
        """Update the state of vLLM's logits processors and sampler after tokens were added to the
        requests."""
        self.metadata = worker_v1.sampling_metadata(self.rows, self.requests)


class PoolingBatch:
    """The pooling requests of a V1 worker.

    Each is answered in the step that computes the last token of its prompt.
    """

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._prompts: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}
        self._params: dict[
            str, tuple[Any, int]
        ] = {}  # pooling parameters, and the number of tokens computed at first

    def step(self, scheduled: Any) -> tuple[list[str], list[Optional[torch.Tensor]]]:
        """Apply one scheduler output.

        Returns the ids of the scheduled requests and their answers, None where a prompt is not
        computed completely.
        """
        for request_id in scheduled.finished_req_ids:
            self._prompts.pop(request_id, None)
            self._params.pop(request_id, None)
        for new in scheduled.scheduled_new_reqs:
            self._prompts[new.req_id] = with_media(list(new.prompt_token_ids), worker_v1.media(new))
            self._computed[new.req_id] = new.num_computed_tokens
            self._params[new.req_id] = getattr(new, "pooling_params", None), new.num_computed_tokens
        for cached in worker_v1.cached_requests(scheduled):
            self._computed[cached.request_id] = cached.computed
        ids = list(scheduled.num_scheduled_tokens)
        return ids, [
            self._answer(request_id, scheduled.num_scheduled_tokens[request_id])
            for request_id in ids
        ]

    def _answer(self, request_id: str, count: int) -> Optional[torch.Tensor]:
        prompt = self._prompts[request_id]
        if self._computed[request_id] + count < len(prompt):
            return None
        params, start = self._params[request_id]
        return self._pooling.answer(prompt, params, start)
