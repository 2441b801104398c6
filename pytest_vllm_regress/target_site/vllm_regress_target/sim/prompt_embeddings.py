"""Prompts given as embeddings. A number stands for each embedding, as a token id stands for a token."""

import hashlib
from typing import Any, List

import torch


def prompt_tokens(tokens: Any, embeddings: Any, are_tokens: Any = None) -> List[int]:
    """Return the prompt as numbers: token ids, and negative numbers for embeddings. Equal embeddings have equal numbers.

    `are_tokens` says which positions are tokens, if both are given.
    """
    if embeddings is None:
        return list(tokens)
    rows: List[int] = []
    for row in embeddings.detach().to(torch.float32).contiguous().numpy():
        digest = hashlib.blake2b(row.tobytes(), digest_size=7).digest()
        rows.append(-1 - int.from_bytes(digest, "little"))
    if tokens is None or are_tokens is None:
        return rows
    return [token if is_token else row for token, is_token, row in zip(tokens, are_tokens, rows)]
