"""Draft tokens in V1, proposed by vLLM's own n-gram proposer, and the log probabilities of steps
that accept drafts."""

from typing import Any

import numpy as np
import torch

from ..dialect import speculation, worker_v1
from ..dialect.signatures import call_with

BY_REQUEST = worker_v1.logprobs_by_request()
LogprobsTensors: Any = worker_v1.logprobs_tensors()


class Drafter:
    """Proposes the next tokens of each request.

    The first proposal compiles vLLM's search, which takes a few seconds.
    """

    def __init__(self, vllm_config: Any) -> None:
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        self._config = vllm_config.speculative_config
        self._length = vllm_config.model_config.max_model_len
        self._proposer = call_with(NgramProposer, {"vllm_config": vllm_config})
        self._whole_batch = speculation.proposes_for_whole_batch(self._proposer)

    def propose(
        self, rows: Any, sampled: list[list[int]], histories: list[list[int]]
    ) -> list[list[int]]:
        """Return a draft for each row of the batch; empty if there is none.

        Args:
            rows: vLLM's InputBatch.
            sampled: the tokens each row sampled in this step. A row without tokens gets no draft.
            histories: prompt and output of each row so far.
        """
        undrafted = speculation.undrafted_requests(rows)
        sampled = [
            [] if request_id in undrafted else tokens
            for request_id, tokens in zip(rows.req_ids, sampled)
        ]
        if self._whole_batch:
            return self._drafts_of_batch(rows, sampled, histories)
        return [
            self._draft_of_row(history) if tokens else []
            for tokens, history in zip(sampled, histories)
        ]

    def _drafts_of_batch(
        self, rows: Any, sampled: list[list[int]], histories: list[list[int]]
    ) -> list[list[int]]:
        contexts = np.zeros((len(histories), self._length), dtype=np.int32)
        for index, history in enumerate(histories):
            contexts[index, : len(history)] = history[: self._length]
        arguments = {
            "num_speculative_tokens": self._config.num_speculative_tokens,
            "sampled_token_ids": [np.asarray(tokens, dtype=np.int32) for tokens in sampled],
            "req_ids": list(rows.req_ids),
            "num_tokens_no_spec": np.asarray(
                [len(history) for history in histories], dtype=np.int32
            ),
            "token_ids_cpu": contexts,
            "spec_decode_unsupported_reqs": set(),
        }
        return [list(map(int, draft)) for draft in call_with(self._proposer.propose, arguments)]

    def _draft_of_row(self, history: list[int]) -> list[int]:
        smallest, largest = speculation.lookup_sizes(self._config)
        arguments = {
            "context_token_ids": np.asarray(history, dtype=np.int32),
            "n": smallest,
            "min_n": smallest,
            "max_n": largest,
            "k": min(self._config.num_speculative_tokens, self._length - len(history)),
        }
        draft = call_with(self._proposer.propose, arguments) if arguments["k"] > 0 else None
        return [] if draft is None else [int(token) for token in draft]


def join_logprobs(passes: list[Any], sampled: list[list[int]]) -> Any:
    """Return the log probabilities as lists for the scheduler, or None.

    A vLLM that cannot assign several entries to a request gets one entry for each, that of its last
    token, as from its own model runner.

    Args:
        passes: vLLM's tensors for the first, second ... token of every row.
        sampled: the tokens that each row sampled.
    """
    if passes[0] is None:
        return None
    if len(passes) == 1:
        return passes[0].tolists()
    if BY_REQUEST:
        picked = [
            (place, index) for index, tokens in enumerate(sampled) for place in range(len(tokens))
        ]
        ends = [0]
        for tokens in sampled:
            ends.append(ends[-1] + len(tokens))
        return _rows(passes, picked).tolists(ends)
    return _rows(
        passes, [(max(0, len(tokens) - 1), index) for index, tokens in enumerate(sampled)]
    ).tolists()


def _rows(passes: list[Any], picked: list[Any]) -> Any:
    columns = zip(*(tensors[:3] for tensors in passes))
    return LogprobsTensors(
        *(
            torch.stack([column[place][index] for place, index in picked])
            for column in map(list, columns)
        )
    )
