"""The parts of a forged checkpoint: sizes, tokenizer, names and shapes of weights."""

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
    """Sizes of a forged model.

    The default head width of 32 is the smallest that CPU kernels support.
    """

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
        """Width of an attention head."""
        return self.hidden // self.heads


SHAPES: Mapping[int, Shape] = MappingProxyType(
    {32: Shape(), 64: Shape(hidden=256, intermediate=512)}
)
"""Shapes by head width. Some CUDA attention backends, for example FlashInfer, need at least 64."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A tokenizer: its ``files``, the ``ids`` of its special tokens and markers, and the vocabulary
    ``size`` of its models.

    ``begin``, ``end`` and ``pad`` are the texts of the tokens that its models put around a text.
    """

    ids: Mapping[str, int]
    size: int
    files: Mapping[str, bytes]
    begin: str
    end: str
    pad: str


@dataclasses.dataclass(frozen=True)
class CheckpointKind:
    """A kind of checkpoint: the model class, its config.json, weights and tokenizer, and further
    JSON ``documents`` by file name.

    ``needs``: requirements (PEP 508) that the target must meet in addition to vLLM. ``arguments``:
    engine arguments that the kind needs.
    ``keeps``: whether the weight of this name is written. All weights are drawn, so that two kinds
    with the same weights have equal values in those that both keep.
    """

    architecture: str
    config: Callable[[Tokenizer, Shape], Mapping[str, Any]]
    weights: Callable[[int, Shape], Weights]
    tokenizer: Callable[[], Tokenizer]
    documents: Callable[[Tokenizer], Mapping[str, Any]]
    needs: tuple[str, ...] = ()
    keeps: Callable[[str], bool] = lambda name: True
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)


def padded_size(count: int) -> int:
    """Return the vocabulary size for ``count`` tokens, padded like real ones so that
    tensor-parallel ranks can divide it."""
    return -(-count // 64) * 64


def json_bytes(content: Any) -> bytes:
    """Return a JSON document in the format of all files of a checkpoint."""
    return json.dumps(content, ensure_ascii=False, indent=1).encode()
