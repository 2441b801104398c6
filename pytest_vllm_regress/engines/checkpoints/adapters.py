"""Forged LoRA adapters with seeded weights, in PEFT's file layout but written without PEFT.

Each fits the checkpoint that it is made for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError
from ...util.documents import load_json
from .forge import MAX_CONFIG, ensure_files, weight_file
from .models import families, filled, json_bytes

_TARGETS = ("q_proj", "v_proj")


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter for a request. Adapters with equal ``name`` and different seeds or ranks are
    different adapters under the same name.

    ``rank`` of its matrices, ``seed`` of its weights. ``broken``: its weight file is truncated, as
    after a failed copy.
    """

    name: str
    rank: int = 8
    seed: int = 0
    broken: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1 or self.seed < 0 or not self.name:
            raise UsageError(
                f"{self!r}: an adapter needs a name, a rank of at least 1 and a seed of at least 0"
            )


def ensure_adapter(adapter: Adapter, model: Path, root: Path) -> Path:
    """Return the absolute path of ``adapter`` for the checkpoint ``model``, below ``root``. It is
    written if it is missing or incomplete.

    Raises ``UsageError`` if it cannot be written, or if the checkpoint's configuration does not
    have the sizes of its attention.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for module, (rows, columns) in _projections(model):
        shapes[f"base_model.model.{module}.lora_A.weight"] = (adapter.rank, columns)
        shapes[f"base_model.model.{module}.lora_B.weight"] = (rows, adapter.rank)
    weights = weight_file(shapes, adapter.seed)
    config = filled(families()["adapters"]["lora"], {"rank": adapter.rank, "none": None}, {})
    files = {
        "adapter_config.json": json_bytes(config),
        "adapter_model.safetensors": weights[: len(weights) // 2] if adapter.broken else weights,
    }
    folder = (
        root.absolute() / f"adapter-{hashlib.sha256(b''.join(files.values())).hexdigest()[:12]}"
    )
    return ensure_files(folder, files)


def _projections(model: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the attention projections that an adapter changes, with their shapes."""
    try:
        config = load_json(model / "config.json", MAX_CONFIG)
        hidden, heads, layers = (
            config[field] for field in ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
    except (UsageError, TypeError, KeyError) as error:
        raise UsageError(
            f"no adapter can be made for {model}: its config.json does not have the sizes of its attention: {error!r}"
        ) from None
    head = config.get("head_dim") or hidden // heads
    for layer in range(layers):
        for name, count in zip(
            _TARGETS, (heads, config.get("num_key_value_heads", heads)), strict=True
        ):
            yield f"model.layers.{layer}.self_attn.{name}", (count * head, hidden)
