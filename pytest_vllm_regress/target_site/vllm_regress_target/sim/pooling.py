"""Pooled prompts: in place of a network's hidden states and heads, numbers that are a pure function of the prompt's tokens."""

from typing import Any, List, Tuple

import numpy as np
import torch

from .compat import SimulationGap
from .draw import Draw

_TOKENWISE = ("encode", "reward", "token_embed", "token_classify")


class Pooling:
    """Vectors of the model's width and of length one, and probabilities of its classes; prompts that share tokens have similar ones."""

    def __init__(self, draw: Draw, model_config: Any) -> None:
        self._draw = draw
        self._size = int(model_config.get_hidden_size())
        self._labels = int(getattr(model_config.hf_config, "num_labels", 0))
        self._classifies = _classifies(model_config)
        self._task = str(getattr(model_config, "task", None) or "")  # up to 0.9 the model's, later each request's

    def tasks(self, known: Tuple[str, ...]) -> Tuple[str, ...]:
        """Those of vLLM's ``known`` tasks that the model is for."""
        if self._classifies:
            able = {"encode", "classify", "token_classify", *(["score"] if self._labels == 1 else [])}
        else:
            able = {"encode", "embed", "token_embed"}
        return tuple(task for task in known if task in able)

    def answer(self, tokens: List[int], params: Any, start: int = 0) -> torch.Tensor:
        """What the request asks for; token by token it begins at ``start``, for what lies in the prefix cache is not computed."""
        if getattr(params, "late_interaction_params", None) is not None:
            raise SimulationGap("late interaction: scores inside the worker")
        task = getattr(params, "task", None) or self._task
        if task in _TOKENWISE:
            return torch.stack([self._token(tokens[: at + 1], params) for at in range(start, len(tokens))])
        if self._classifies:
            classes = self._classes(tokens, params)
            return classes[0] if task == "score" else classes
        return self._vector(self._draw.pooled(tokens, self._size), params)

    def _token(self, before: List[int], params: Any) -> torch.Tensor:
        if self._classifies:
            return self._classes(before, params)
        return self._vector(self._draw.last(before, self._size), params)

    def _vector(self, drawn: np.ndarray, params: Any) -> torch.Tensor:
        vector = torch.from_numpy(drawn)[: getattr(params, "dimensions", None)]
        if not _activates(params, "normalize"):
            return vector
        return torch.nn.functional.normalize(vector, dim=0)

    def _classes(self, tokens: List[int], params: Any) -> torch.Tensor:
        logits = torch.from_numpy(self._draw.pooled(tokens, self._labels)) / len(tokens) ** 0.5
        if not _activates(params, "activation"):
            return logits
        return torch.sigmoid(logits) if self._labels == 1 else torch.softmax(logits, dim=0)


def _activates(params: Any, older: str) -> bool:
    """What a request asks for as use_activation; before 0.12 it had a name of its own."""
    return False not in (getattr(params, "use_activation", None), getattr(params, older, None))


def _classifies(model_config: Any) -> bool:
    """Whether the model has a head of classes: by itself, or because it was converted."""
    asked = (getattr(model_config, "convert_type", None), getattr(model_config, "task", None))
    if "classify" in asked or "score" in asked:
        return True
    return any("ForSequenceClassification" in name for name in model_config.hf_config.architectures or ())
