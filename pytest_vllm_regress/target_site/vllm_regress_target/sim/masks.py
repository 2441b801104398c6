"""Applies the engine core's grammar bitmask to logits in the worker."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class GrammarMasks:
    """The masks of one step: for each request with a grammar, one mask for each token that the step
    may produce.

    If `covers_drafts`, this vLLM's bitmask has a row for every draft token and one for the token
    after them. The rows are ordered by request, in the order of the ids or of the numbers the ids
    are mapped to; the latest versions give each request the same number of rows. Otherwise there is
    one row for each request, and ids are mapped to row numbers.
    """

    def __init__(
        self, grammar: Any, drafts: Mapping[str, Sequence[int]], covers_drafts: bool
    ) -> None:
        mask = getattr(grammar, "grammar_bitmask", None)
        self._mask: Any = () if mask is None else mask
        ids = () if mask is None else grammar.structured_output_request_ids
        self._places: dict[str, tuple[int, int]] = {}  # first row, number of rows
        if isinstance(ids, dict) and not covers_drafts:
            self._places = {request_id: (row, 1) for request_id, row in ids.items()}
            return
        ordered: list[str] = (
            sorted(ids, key=ids.__getitem__) if isinstance(ids, dict) else list(ids)
        )
        counts = [1 + len(drafts.get(request_id, ())) for request_id in ordered]
        rows_each = (
            len(self._mask) // len(ordered) if ordered and len(self._mask) != sum(counts) else 0
        )
        first = 0
        for request_id, count in zip(ordered, counts):
            self._places[request_id] = (first, count)
            first += rows_each or count

    def apply(self, logits: Any, rows: Mapping[str, int], position: int) -> None:
        """Mask the tokens in `logits` that grammars forbid at this position of the step.

        `rows` maps requests to rows of `logits`.
        """
        width = logits.shape[1]
        for request_id, (first, count) in self._places.items():
            index = rows.get(request_id)
            if index is not None and position < count:
                row = np.ascontiguousarray(self._mask[first + position])
                bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:width]
                logits[index, : len(bits)][bits == 0] = float("-inf")
