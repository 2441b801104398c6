"""A Hugging Face cache in which names of the hub are aliases of forged checkpoints, so that what
asks for a model by name runs offline.

The folder has the hub's own layout. It is ours alone: the user's cache is neither read nor written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ...errors import UsageError
from ...util.documents import load_json
from ...util.files import peek, read_bounded, write_atomically
from .adapters import Adapter, ensure_adapter
from .forge import MAX_CONFIG, ensure_checkpoint, publish, weight_file
from .models import json_bytes

ADAPTER = "adapter"
"""Kind of names that stand for a LoRA adapter of the text model."""
PROMPT_ADAPTER = "prompt adapter"
"""The kind of a name that stands for eight virtual tokens before a prompt of the text model."""
MAX_POSITIONS = 32768
"""Length that aliases of generating models claim: tests ask for the lengths of the models that they
name."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}|gpt2|bert-base-uncased")
"""A name on the hub with its owner, or one of the few without."""

_VIRTUAL_TOKENS = 8
_MAX_FILE = 64 * 1024 * 1024
_NAMED: Mapping[str, str] = MappingProxyType(
    {
        "charent/self_cognition_Alice": ADAPTER,
        "charent/self_cognition_Bob": ADAPTER,
        "jason9693/Qwen2.5-1.5B-apeach": "classifier",
        "internlm/internlm2-1_8b-reward": "classifier",
        "intfloat/e5-mistral-7b-instruct": "text",
        "Alibaba-NLP/gte-Qwen2-1.5B-instruct": "text",
        "ssmits/Qwen2-7B-Instruct-embed-base": "text",
    }
)
"""Names whose words would mislead."""
_BY_WORDS = (
    (re.compile(r"gguf|tensori[sz]er|eagle|medusa", re.I), None),
    (re.compile(r"ptune|prompt.?adapter", re.I), PROMPT_ADAPTER),
    (re.compile(r"lora(?!s)|adapter", re.I), ADAPTER),
    (re.compile(r"whisper", re.I), "speech"),
    (re.compile(r"rerank|cross-encoder", re.I), "reranker"),
    (re.compile(r"bge|gte|\be5\b|embed|minilm|sentence-transformers|bert", re.I), "encoder"),
    (re.compile(r"mamba|jamba|bamba", re.I), "mamba"),
    (re.compile(r"\bvl\b|vision|llava|vlm|phi-3\.5-v|internvl|pixtral|paligemma", re.I), "vision"),
    (re.compile(r"audio|ultravox", re.I), "audio"),
    (re.compile(r"bart|\bt5\b", re.I), None),
    (re.compile(r"moe|mixtral|deepseek-v", re.I), "experts"),
)
"""Words of a name without its owner and the kind that they mean, the first match first; None: there
is no stand-in."""
_OWNERS_WITH_ONE_KIND = ("cross-encoder", "sentence-transformers")
"""Owners that count as words of the name. Others mislead: distilbert/distilgpt2."""


def kind_of(name: str) -> str | None:
    """Return the kind of checkpoint that stands in for a name of the hub; None if no forged one
    can: quantized files, encoder-decoders."""
    if name in _NAMED:
        return _NAMED[name]
    owner, _, own_name = name.rpartition("/")
    text = (name if owner in _OWNERS_WITH_ONE_KIND else own_name).replace("_", "-")
    return next((kind for words, kind in _BY_WORDS if words.search(text)), "text")


def ensure_alias(name: str, hub: Path, checkpoints: Path) -> Path | None:
    """Return the snapshot folder of ``name`` in the cache ``hub``, made from a checkpoint below
    ``checkpoints``; None if there is no stand-in.

    Raises ``UsageError`` for what is not the name of a repository, and for a folder that cannot be
    written.
    """
    if not NAME.fullmatch(name) or ".." in name or "--" in name:
        raise UsageError(f"{name[:200]!r} is not a name of the hub: OWNER/NAME")
    kind = kind_of(name)
    if kind is None:
        return None
    if kind == PROMPT_ADAPTER:
        files = _prompt_adapter_files(checkpoints)
    else:
        files = (
            _adapter_files(name, checkpoints)
            if kind == ADAPTER
            else _checkpoint_files(kind, checkpoints)
        )
    commit = hashlib.sha256(
        repr([(path, hashlib.sha256(data).hexdigest()) for path, data in files]).encode()
    ).hexdigest()
    repository = hub.absolute() / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit[:40]
    if not all((snapshot / path).is_file() for path, _ in files):
        publish(snapshot, dict(files))
    main = repository / "refs" / "main"
    if not main.is_file() or read_bounded(main, 100).decode() != commit[:40]:
        write_atomically(main, commit[:40])
    return snapshot


def snapshot_of(name: str, hub: Path | None) -> Path | None:
    """Return the folder of an alias in ``hub``; None if the name has none there."""
    if hub is None or not NAME.fullmatch(name):
        return None
    repository = hub / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / (peek(repository / "refs" / "main", 100) or "none")
    return snapshot if snapshot.is_dir() else None


def variables_of(hub: Path | None) -> dict[str, str]:
    """Return the variables with which a process finds names in ``hub`` and nowhere else; none
    without a folder."""
    return (
        {}
        if hub is None
        else {"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    )


def _checkpoint_files(kind: str, checkpoints: Path) -> list[tuple[str, bytes]]:
    folder = ensure_checkpoint(kind, checkpoints)
    files = {path.name: read_bounded(path, _MAX_FILE) for path in sorted(folder.iterdir())}
    config = json.loads(files["config.json"])
    if (
        config.get("max_position_embeddings") == 4096
    ):  # positions that are computed; those of encoders are weights
        files["config.json"] = json_bytes({**config, "max_position_embeddings": MAX_POSITIONS})
        settings = json.loads(files["tokenizer_config.json"])
        files["tokenizer_config.json"] = json_bytes({**settings, "model_max_length": MAX_POSITIONS})
    return sorted(files.items())


def _adapter_files(name: str, checkpoints: Path) -> list[tuple[str, bytes]]:
    base = ensure_checkpoint("text", checkpoints)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:2], "big")
    folder = ensure_adapter(Adapter(name, seed=seed), base, checkpoints)
    files = {path.name: read_bounded(path, _MAX_FILE) for path in sorted(folder.iterdir())}
    config = load_json(folder / "adapter_config.json", MAX_CONFIG)
    files["adapter_config.json"] = json_bytes({**config, "base_model_name_or_path": "text"})
    return sorted(files.items())


def _prompt_adapter_files(checkpoints: Path) -> list[tuple[str, bytes]]:
    config = load_json(ensure_checkpoint("text", checkpoints) / "config.json", MAX_CONFIG)
    adapter = {
        "peft_type": "PROMPT_TUNING",
        "task_type": "CAUSAL_LM",
        "num_virtual_tokens": _VIRTUAL_TOKENS,
    }
    weights = weight_file({"prompt_embeddings": (_VIRTUAL_TOKENS, config["hidden_size"])}, 0)
    return [("adapter_config.json", json_bytes(adapter)), ("adapter_model.safetensors", weights)]
