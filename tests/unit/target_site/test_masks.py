"""Assignment of the rows of a grammar bitmask to requests, which differs between vLLM versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_vllm_regress.target_site.vllm_regress_target.sim.masks import GrammarMasks

NUMBERS = {"plain": 0, "one": 1, "other": 2}


def bitmask(*allowed: int) -> Any:
    """Return a bitmask of 32 tokens in which each row allows one token."""
    return np.asarray([[1 << token] for token in allowed], dtype=np.int32)


def allowed(masks: GrammarMasks, position: int) -> dict[str, list[int]]:
    logits = np.zeros((3, 32), dtype=np.float32)
    masks.apply(logits, NUMBERS, position)
    return {
        name: np.flatnonzero(np.isfinite(logits[row])).tolist() for name, row in NUMBERS.items()
    }


EVERY = list(range(32))


@pytest.mark.parametrize(
    ("mask", "ids", "covers_drafts", "drafts"),
    [
        # up to 0.8: one row for each request of the batch, at its index; the first row belongs to
        # no request
        (bitmask(9, 1, 2), {"one": 1, "other": 2}, False, {}),
        # 0.9 and 0.10: rows in the order of the numbers, without requests that have no grammar
        (bitmask(1, 2), {"other": 7, "one": 3}, True, {}),
        # from 0.11: rows in the order of the ids
        (bitmask(1, 2), ["one", "other"], True, {}),
        (bitmask(1, 2), ["one", "gone", "other"][::2], True, {"plain": [5, 5]}),
    ],
)
def test_a_step_of_one_token_has_one_row_per_request(
    mask: Any, ids: Any, covers_drafts: bool, drafts: dict[str, list[int]]
) -> None:
    grammar = SimpleNamespace(grammar_bitmask=mask, structured_output_request_ids=ids)
    assert allowed(GrammarMasks(grammar, drafts, covers_drafts), 0) == {
        "plain": EVERY,
        "one": [1],
        "other": [2],
    }


@pytest.mark.parametrize(
    "mask",
    [
        bitmask(1, 3, 4, 2),  # one row for each draft token and one more
        bitmask(1, 3, 4, 2, 9, 9),  # every request has as many rows as the longest draft needs
    ],
)
def test_each_draft_token_has_a_row(mask: Any) -> None:
    grammar = SimpleNamespace(grammar_bitmask=mask, structured_output_request_ids=["one", "other"])
    masks = GrammarMasks(grammar, {"one": [1, 3], "plain": [8]}, covers_drafts=True)
    assert allowed(masks, 0) == {"plain": EVERY, "one": [1], "other": [2]}
    assert allowed(masks, 1) == {"plain": EVERY, "one": [3], "other": EVERY}
    assert allowed(masks, 2) == {"plain": EVERY, "one": [4], "other": EVERY}
    assert allowed(masks, 3) == {"plain": EVERY, "one": EVERY, "other": EVERY}


@pytest.mark.parametrize(
    "grammar", [None, SimpleNamespace(grammar_bitmask=None, structured_output_request_ids={})]
)
def test_without_a_grammar_every_token_is_allowed(grammar: Any) -> None:
    assert allowed(GrammarMasks(grammar, {}, covers_drafts=True), 0) == dict.fromkeys(
        NUMBERS, EVERY
    )
