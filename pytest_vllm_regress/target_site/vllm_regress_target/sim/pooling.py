"""Pooled prompts: in place of a network's hidden states, a vector that is a pure function of the prompt's tokens."""

from typing import Any, List

import torch

from .draw import Draw


class Pooling:
    """Vectors of the model's width and of length one; prompts that share tokens have similar ones."""

    def __init__(self, draw: Draw, model_config: Any) -> None:
        self._draw = draw
        self._size = int(model_config.get_hidden_size())

    def vector(self, tokens: List[int]) -> torch.Tensor:
        """The vector of a prompt."""
        return torch.nn.functional.normalize(torch.from_numpy(self._draw.pooled(tokens, self._size)), dim=0)
