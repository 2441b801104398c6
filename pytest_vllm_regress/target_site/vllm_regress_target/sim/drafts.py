"""Draft tokens in V1: proposed by vLLM's own n-gram proposer, as its GPU model runner asks it; and what a step reports that accepted some."""

from typing import Any, List, Set

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors

from .compat import feed, takes

BY_REQUEST = takes(LogprobsTensors.tolists, "cu_num_generated_tokens")


class Drafter:
    """Proposes what may come next in each request. The first proposal compiles vLLM's search, which takes a few seconds."""

    def __init__(self, vllm_config: Any) -> None:
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        self._config = vllm_config.speculative_config
        self._length = vllm_config.model_config.max_model_len
        self._proposer = feed(NgramProposer, {"vllm_config": vllm_config})
        self._whole_batch = not takes(self._proposer.propose, "context_token_ids")

    def propose(self, rows: Any, sampled: List[List[int]], histories: List[List[int]]) -> List[List[int]]:
        """A draft for each row of the batch, empty where there is none.

        `sampled`: what each said in this step; who said nothing gets no draft. `histories`: prompt and answer so far.
        """
        left_out = _left_out(rows)
        asked = [[] if request_id in left_out else said for request_id, said in zip(rows.req_ids, sampled)]
        if self._whole_batch:
            return self._of_batch(rows, asked, histories)
        return [self._of_one(history) if said else [] for said, history in zip(asked, histories)]

    def _of_batch(self, rows: Any, sampled: List[List[int]], histories: List[List[int]]) -> List[List[int]]:
        contexts = np.zeros((len(histories), self._length), dtype=np.int32)
        for index, history in enumerate(histories):
            contexts[index, : len(history)] = history[: self._length]
        known = {
            "num_speculative_tokens": self._config.num_speculative_tokens,
            "sampled_token_ids": [np.asarray(said, dtype=np.int32) for said in sampled],
            "req_ids": list(rows.req_ids),
            "num_tokens_no_spec": np.asarray([len(history) for history in histories], dtype=np.int32),
            "token_ids_cpu": contexts,
            "spec_decode_unsupported_reqs": set(),
        }
        return [list(map(int, draft)) for draft in feed(self._proposer.propose, known)]

    def _of_one(self, history: List[int]) -> List[int]:
        known = {
            "context_token_ids": np.asarray(history, dtype=np.int32),
            "n": getattr(self._config, "ngram_prompt_lookup_min", None),
            "k": min(self._config.num_speculative_tokens, self._length - len(history)),
        }
        draft = feed(self._proposer.propose, known) if known["k"] > 0 else None
        return [] if draft is None else [int(token) for token in draft]


def _left_out(rows: Any) -> Set[str]:
    """Requests whose sampling parameters this vLLM does not draft for."""
    if hasattr(rows, "spec_decode_unsupported_reqs"):
        return set(rows.spec_decode_unsupported_reqs)
    try:
        from vllm.v1.spec_decode.utils import is_spec_decode_supported
    except ImportError:  # 0.7 has no such list, the newest ones need none
        return set()
    return {request_id for request_id in rows.req_ids if not is_spec_decode_supported(request_id, rows)}


def join_logprobs(passes: List[Any], said: List[List[int]]) -> Any:
    """The lists for the scheduler, or None. `passes`: vLLM's tensors for the first, second ... token of every row.

    A vLLM that cannot tell which rows are whose gets one row for each request, that of its last token: so many its own model runner gives.
    """
    if passes[0] is None:
        return None
    if len(passes) == 1:
        return passes[0].tolists()
    if BY_REQUEST:
        picked = [(place, index) for index, tokens in enumerate(said) for place in range(len(tokens))]
        ends = [0]
        for tokens in said:
            ends.append(ends[-1] + len(tokens))
        return _rows(passes, picked).tolists(ends)
    return _rows(passes, [(max(0, len(tokens) - 1), index) for index, tokens in enumerate(said)]).tolists()


def _rows(passes: List[Any], picked: List[Any]) -> Any:
    columns = zip(*(each[:3] for each in passes))
    return LogprobsTensors(
        *(torch.stack([column[place][index] for place, index in picked]) for column in map(list, columns))
    )
