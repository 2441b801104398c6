"""The engine core's grammar bitmask, laid over logits in the worker."""

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np


class Masks:
    """The masks of one step: for each request that has a grammar one for each token that the step may bring.

    `aware`: whether this vLLM's bitmask has a row for every draft token and one for the token behind them. Its rows then follow each other,
    request by request (the latest give every request as many), in the order of the ids or of the numbers that ids are mapped to. Before that
    there is one row for each request, and the number is the row's.
    """

    def __init__(self, grammar: Any, drafts: Mapping[str, Sequence[int]], aware: bool) -> None:
        mask = getattr(grammar, "grammar_bitmask", None)
        self._mask: Any = () if mask is None else mask
        ids = () if mask is None else grammar.structured_output_request_ids
        self._places: Dict[str, Tuple[int, int]] = {}  # first row, and how many
        if isinstance(ids, dict) and not aware:
            self._places = {request_id: (row, 1) for request_id, row in ids.items()}
            return
        ordered: List[str] = sorted(ids, key=ids.__getitem__) if isinstance(ids, dict) else list(ids)
        counts = [1 + len(drafts.get(request_id, ())) for request_id in ordered]
        alike = len(self._mask) // len(ordered) if ordered and len(self._mask) != sum(counts) else 0
        first = 0
        for request_id, count in zip(ordered, counts):
            self._places[request_id] = (first, count)
            first += alike or count

    def lay(self, logits: Any, numbers: Mapping[str, int], position: int) -> None:
        """Forbid in `logits` what the grammars forbid at this position of the step. `numbers`: of each request's row of logits."""
        width = logits.shape[1]
        for request_id, (first, count) in self._places.items():
            index = numbers.get(request_id)
            if index is not None and position < count:
                row = np.ascontiguousarray(self._mask[first + position])
                bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:width]
                logits[index, : len(bits)][bits == 0] = float("-inf")
