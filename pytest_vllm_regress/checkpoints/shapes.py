"""What a kind of forged checkpoint is made of: sizes, the words of its tokenizer, names and shapes of its weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

Weights = Iterator[tuple[str, tuple[int, ...]]]
"""Tensor names and shapes."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a forged model; by default heads of 32, the least that CPU kernels take."""

    hidden: int = 128
    intermediate: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    vision_hidden: int = 64
    vision_intermediate: int = 128
    vision_depth: int = 2
    vision_heads: int = 2

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


SHAPES: Mapping[int, Shape] = MappingProxyType({32: Shape(), 64: Shape(hidden=256, intermediate=512)})
"""By the width of a head. Some attention backends of CUDA take 64 or more only, FlashInfer for one."""


@dataclasses.dataclass(frozen=True)
class Words:
    """A tokenizer: its ``files``, the ``ids`` of its special tokens and markers, and the ``size`` of the vocabulary that a model is to have for it.

    ``begin``, ``end`` and ``pad`` are what its models call the tokens around a text.
    """

    ids: Mapping[str, int]
    size: int
    files: Mapping[str, bytes]
    begin: str
    end: str
    pad: str


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of checkpoint: the model class, its config.json and weights, its tokenizer, and the JSON files beside them.

    ``needs``: a package that the target must have beside vLLM. ``keeps``: which weights are written, by name; all are drawn, so that kinds of the
    same weights share what they keep. ``arguments``: engine arguments that it needs.
    """

    architecture: str
    config: Callable[[Words, Shape], Mapping[str, Any]]
    weights: Callable[[int, Shape], Weights]
    words: Callable[[], Words]
    beside: Callable[[Words], Mapping[str, Any]]
    needs: str | None = None
    keeps: Callable[[str], bool] = lambda name: True
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)


def padded(count: int) -> int:
    """The size of a vocabulary of so many tokens: padded as real ones are, and divisible between tensor-parallel ranks."""
    return -(-count // 64) * 64


def written(content: Any) -> bytes:
    """A JSON document as every file of a checkpoint is written."""
    return json.dumps(content, ensure_ascii=False, indent=1).encode()
