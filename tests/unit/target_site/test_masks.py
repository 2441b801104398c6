"""Which row of a grammar bitmask is whose. Versions of vLLM differ in that; what they give is written out here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_vllm_regress.target_site.vllm_regress_target.sim.masks import Masks

NUMBERS = {"plain": 0, "one": 1, "other": 2}


def bitmask(*allowed: int) -> Any:
    """A bitmask of 32 tokens; row by row the one token that is allowed."""
    return np.asarray([[1 << token] for token in allowed], dtype=np.int32)


def allowed(masks: Masks, position: int) -> dict[str, list[int]]:
    logits = np.zeros((3, 32), dtype=np.float32)
    masks.lay(logits, NUMBERS, position)
    return {name: np.flatnonzero(np.isfinite(logits[row])).tolist() for name, row in NUMBERS.items()}


EVERY = list(range(32))


@pytest.mark.parametrize(
    ("mask", "ids", "aware", "drafts"),
    [
        # up to 0.8: one row for each request of the batch, at its number; the first row is nobody's
        (bitmask(9, 1, 2), {"one": 1, "other": 2}, False, {}),
        # 0.9 and 0.10: rows in the order of the numbers, which leave out requests without a grammar
        (bitmask(1, 2), {"other": 7, "one": 3}, True, {}),
        # from 0.11: rows in the order of the ids
        (bitmask(1, 2), ["one", "other"], True, {}),
        (bitmask(1, 2), ["one", "gone", "other"][::2], True, {"plain": [5, 5]}),
    ],
)
def test_one_token_a_step(mask: Any, ids: Any, aware: bool, drafts: dict[str, list[int]]) -> None:
    grammar = SimpleNamespace(grammar_bitmask=mask, structured_output_request_ids=ids)
    assert allowed(Masks(grammar, drafts, aware), 0) == {"plain": EVERY, "one": [1], "other": [2]}


@pytest.mark.parametrize(
    "mask",
    [
        bitmask(1, 3, 4, 2),  # a row for each draft token and one more
        bitmask(1, 3, 4, 2, 9, 9),  # every request has as many rows as the longest draft wants
    ],
)
def test_a_row_for_each_draft_token(mask: Any) -> None:
    grammar = SimpleNamespace(grammar_bitmask=mask, structured_output_request_ids=["one", "other"])
    masks = Masks(grammar, {"one": [1, 3], "plain": [8]}, aware=True)
    assert allowed(masks, 0) == {"plain": EVERY, "one": [1], "other": [2]}
    assert allowed(masks, 1) == {"plain": EVERY, "one": [3], "other": EVERY}
    assert allowed(masks, 2) == {"plain": EVERY, "one": [4], "other": EVERY}
    assert allowed(masks, 3) == {"plain": EVERY, "one": EVERY, "other": EVERY}


@pytest.mark.parametrize("grammar", [None, SimpleNamespace(grammar_bitmask=None, structured_output_request_ids={})])
def test_without_a_grammar_nothing_is_forbidden(grammar: Any) -> None:
    assert allowed(Masks(grammar, {}, aware=True), 0) == dict.fromkeys(NUMBERS, EVERY)
