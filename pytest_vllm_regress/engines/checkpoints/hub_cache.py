"""A Hugging Face cache in which names of the hub are aliases of forged checkpoints, so that what
asks for a model by name runs offline.

The folder has the hub's own layout. It is ours alone: the user's cache is neither read nor written.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from ...errors import UsageError
from ...util.documents import load_json
from ...util.files import peek, read_bounded, write_atomically
from .adapters import Adapter, ensure_adapter
from .forge import MAX_CONFIG, ensure_checkpoint, ensure_files, weight_file
from .models import families, json_bytes

ADAPTER = "adapter"
"""Kind of names that stand for a LoRA adapter of the text model."""
PROMPT_ADAPTER = "prompt adapter"
"""The kind of a name that stands for eight virtual tokens before a prompt of the text model."""
MAX_POSITIONS = 32768
"""Length that aliases of generating models claim: tests ask for the lengths of the models that they
name."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}|gpt2|bert-base-uncased")
"""A name on the hub with its owner, or one of the few without."""

_MAX_FILE = 64 * 1024 * 1024


def kind_of(name: str) -> str | None:
    """Return the kind of checkpoint that stands in for a name of the hub; None if no forged one
    can: quantized files, encoder-decoders."""
    known = families()["hub"]
    if name in known["named"]:
        return str(known["named"][name])
    owner, _, own_name = name.rpartition("/")
    text = (name if owner in known["owners"] else own_name).replace("_", "-")
    matches = (kind for words, kind in known["words"] if re.search(words, text, re.I))
    return next(matches, "text") or None


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
    digests = [(path, hashlib.sha256(data).hexdigest()) for path, data in sorted(files.items())]
    commit = hashlib.sha256(repr(digests).encode()).hexdigest()
    repository = hub.absolute() / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit[:40]
    ensure_files(snapshot, files)
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


def _checkpoint_files(kind: str, checkpoints: Path) -> dict[str, bytes]:
    folder = ensure_checkpoint(kind, checkpoints)
    files = _files_in(folder)
    config = json.loads(files["config.json"])
    if (
        config.get("max_position_embeddings") == 4096
    ):  # positions that are computed; those of encoders are weights
        files["config.json"] = json_bytes({**config, "max_position_embeddings": MAX_POSITIONS})
        settings = json.loads(files["tokenizer_config.json"])
        files["tokenizer_config.json"] = json_bytes({**settings, "model_max_length": MAX_POSITIONS})
    return files


def _adapter_files(name: str, checkpoints: Path) -> dict[str, bytes]:
    base = ensure_checkpoint("text", checkpoints)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:2], "big")
    folder = ensure_adapter(Adapter(name, seed=seed), base, checkpoints)
    files = _files_in(folder)
    config = load_json(folder / "adapter_config.json", MAX_CONFIG)
    files["adapter_config.json"] = json_bytes({**config, "base_model_name_or_path": "text"})
    return files


def _prompt_adapter_files(checkpoints: Path) -> dict[str, bytes]:
    config = load_json(ensure_checkpoint("text", checkpoints) / "config.json", MAX_CONFIG)
    adapter = families()["adapters"]["prompt"]
    shape = (adapter["num_virtual_tokens"], config["hidden_size"])
    weights = weight_file({"prompt_embeddings": shape}, 0)
    return {"adapter_config.json": json_bytes(adapter), "adapter_model.safetensors": weights}


def _files_in(folder: Path) -> dict[str, bytes]:
    files = (
        path for path in folder.iterdir() if not path.name.startswith(".")
    )  # .part: half-written
    return {path.name: read_bounded(path, _MAX_FILE) for path in files}
