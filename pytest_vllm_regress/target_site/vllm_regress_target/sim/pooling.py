"""Pooling without a network: embeddings and class probabilities as a pure function of the prompt's
tokens."""

from typing import Any

import numpy as np
import torch

from ..dialect import pooling as dialect
from ..dialect.signatures import SimulationGap
from .synthetic_logits import SyntheticLogits

_TOKENWISE = ("encode", "reward", "token_embed", "token_classify")


class Pooling:
    """Answers pooling requests with unit vectors of the model's width or probabilities of its
    classes. Prompts that share tokens are similar."""

    def __init__(self, synthetic: SyntheticLogits, model_config: Any) -> None:
        self._synthetic = synthetic
        self._size = int(model_config.get_hidden_size())
        self._labels = int(getattr(model_config.hf_config, "num_labels", 0))
        self._classifies = dialect.classifies(model_config)
        self._model_config = model_config

    def tasks(self, known: tuple[str, ...]) -> tuple[str, ...]:
        """Return the tasks among vLLM's ``known`` ones that the model supports."""
        if self._classifies:
            supported = {
                "encode",
                "classify",
                "token_classify",
                *(["score"] if self._labels == 1 else []),
            }
        else:
            supported = {"encode", "embed", "token_embed"}
        return tuple(task for task in known if task in supported)

    def answer(self, tokens: list[int], params: Any, start: int = 0) -> torch.Tensor:
        """Return the answer to a request.

        Token-wise answers begin at ``start``: positions in the prefix cache are not computed.
        """
        if getattr(params, "late_interaction_params", None) is not None:
            raise SimulationGap(
                "late interaction computes scores inside the worker, which is not simulated"
            )
        task = dialect.task_of(params, self._model_config)
        if task in _TOKENWISE:
            return torch.stack(
                [self._token(tokens[: index + 1], params) for index in range(start, len(tokens))]
            )
        if self._classifies:
            classes = self._classes(tokens, params)
            return classes[0] if task == "score" else classes
        return self._vector(self._synthetic.pooled(tokens, self._size), params)

    def _token(self, tokens: list[int], params: Any) -> torch.Tensor:
        if self._classifies:
            return self._classes(tokens, params)
        return self._vector(self._synthetic.last(tokens, self._size), params)

    def _vector(self, numbers: np.ndarray, params: Any) -> torch.Tensor:
        vector = torch.from_numpy(numbers)[: getattr(params, "dimensions", None)]
        if not dialect.uses_activation(params, "normalize"):
            return vector
        return torch.nn.functional.normalize(vector, dim=0)

    def _classes(self, tokens: list[int], params: Any) -> torch.Tensor:
        logits = torch.from_numpy(self._synthetic.pooled(tokens, self._labels)) / len(tokens) ** 0.5
        if not dialect.uses_activation(params, "activation"):
            return logits
        return torch.sigmoid(logits) if self._labels == 1 else torch.softmax(logits, dim=0)
