"""Log probabilities of a step in which requests said several tokens each, in the form that the installed vLLM's scheduler slices."""

from typing import Any, List

import torch
from vllm.v1.outputs import LogprobsTensors

from .compat import takes

BY_REQUEST = takes(LogprobsTensors.tolists, "cu_num_generated_tokens")


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
