"""The checkpoint forge: it writes small, valid Hugging Face checkpoints with seeded weights,
without downloads and without transformers.

The kinds of checkpoints and their families are in ``models.toml``. When is a checkpoint made?
When its folder is missing or incomplete; the name holds a hash (``ensure_checkpoint``). Equal texts have equal token ids in every version of
transformers, and equal seeds give equal weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from ...errors import UsageError
from ...util.documents import load_json
from ...util.files import private_folder, remove_tree, write_atomically
from . import tokenizers
from .models import families, family, filled, json_bytes, weights
from .pcg64 import top_bits
from .tokenizers import Tokenizer

MAX_CONFIG = 4 * 1024 * 1024

_WEIGHTS = "model.safetensors"
_SEED = 0
POSITIONS, LONG_POSITIONS = 4096, 32768
_RECIPE = 2  # increase it when the values of the weights change; all other content is hashed itself


KINDS: Mapping[str, Mapping[str, Any]] = families()["kinds"]
"""The kinds of checkpoints by name: their tokenizers, needs and arguments (``models.toml``)."""


def tokenizer_of(kind: str) -> Tokenizer:
    """Return the tokenizer of a kind. Raises ``UsageError`` with all names for an unknown one."""
    if kind not in KINDS:
        raise UsageError(
            f"no forged model is called {kind!r}; there are {', '.join(KINDS)}. Use --vllm-model for a real model"
        )
    function, *arguments = KINDS[kind]["tokenizer"]
    tokenizer: Tokenizer = getattr(tokenizers, function)(*arguments)
    return tokenizer


def unmet_needs(model: str, versions: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a target with these versions lacks for this kind of model, as requirements.

    Models that are not kinds need nothing.
    """
    requirements = map(Requirement, KINDS.get(model, {}).get("needs", ()))
    return tuple(
        str(requirement)
        for requirement in requirements
        if requirement.name not in versions
        or not requirement.specifier.contains(versions[requirement.name], prereleases=True)
    )


def arguments_of(model: str) -> Mapping[str, str]:
    """Return the engine arguments that this kind needs to start; a spec may override them."""
    arguments: Mapping[str, str] = KINDS.get(model, {}).get("arguments", {})
    return arguments


def architectures_of(model: str) -> tuple[str, ...]:
    """Return the model classes that the checkpoint at the path ``model`` names; empty if it is not
    a path or names none."""
    try:
        names = load_json(Path(model, "config.json"), MAX_CONFIG)["architectures"]
    except (UsageError, LookupError, TypeError):
        return ()
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def positions_for(max_model_len: int) -> int:
    """Return how many positions a forged model needs: 4096, which all tests share, or 32768."""
    return POSITIONS if max_model_len <= POSITIONS else LONG_POSITIONS


def ensure_checkpoint(kind: str, root: Path, *, head: int = 32, positions: int = POSITIONS) -> Path:
    """Return the absolute path of the checkpoint of ``kind`` below ``root``. It is written if it is
    missing or incomplete.

    Its name contains a hash of its configuration, tokenizer, weight shapes and ``_RECIPE``,
    so a changed forge never uses an old checkpoint. A change of weight values alone needs a new
    ``_RECIPE``. Several processes may call this at once.
    ``head`` (32 or 64) is the width of an attention head, ``positions`` the length of the longest
    text. Writing one takes about 2 MB and 0.2 s.

    Raises ``UsageError`` for an unknown kind, or a folder that cannot be written.
    """
    tokenizer = tokenizer_of(kind)
    documents = _documents(kind, tokenizer, head, positions)
    files = {name: json_bytes(content) for name, content in documents.items()}
    files |= tokenizer.files
    drawn = dict(weights(kind, _sizes(tokenizer, head)))
    omitted = families()[kind].get("omit")
    shapes = {name: size for name, size in drawn.items() if not omitted or omitted not in name}
    key = hashlib.sha256(
        repr((_RECIPE, _SEED, sorted(files.items()), sorted(shapes.items()))).encode()
    ).hexdigest()[:12]
    root = root.absolute()
    folder = root / f"{kind}-{key}"
    if _is_whole(folder, files, shapes):
        return folder
    return publish(folder, {**files, _WEIGHTS: weight_file(drawn, _SEED, frozenset(shapes))})


def ensure_tokenizer(markers: Sequence[str], root: Path) -> Path:
    """Return the folder of a tokenizer whose ``markers`` are single tokens. It is written below
    ``root`` if it is missing.

    Its other tokens are those of the forged text model. Texts have equal ids in every release.
    Raises ``UsageError`` if it cannot be written.
    """
    tokenizer = tokenizers.byte_level(markers=markers)
    files = {name: tokenizer.files[name] for name in ("tokenizer.json", "tokenizer_config.json")}
    files["config.json"] = json_bytes(_documents("text", tokenizer, 32, POSITIONS)["config.json"])
    folder = (
        root.absolute()
        / f"tokenizer-{hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]}"
    )
    return ensure_files(folder, files)


def _documents(kind: str, tokenizer: Tokenizer, head: int, positions: int) -> dict[str, Any]:
    """Return the JSON documents of a checkpoint by file name."""
    values = {**_sizes(tokenizer, head), **tokenizer.values, "none": None, "positions": positions}
    for end in ("begin", "end", "pad"):
        values[end] = tokenizer.ids[getattr(tokenizer, end)]
    values["text"] = filled(family("text", "config"), values, tokenizer.ids)
    templates = {"config.json": family(kind, "config"), **family(kind, "documents")}
    return {name: filled(part, values, tokenizer.ids) for name, part in templates.items()}


def _sizes(tokenizer: Tokenizer, head: int) -> dict[str, int]:
    own = {"head": head, "hidden": 4 * head, "intermediate": 8 * head}
    return {**families()["sizes"], **own, "vocabulary": tokenizer.size}


def publish(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write a folder with these files, each in one step.

    Several processes may do that at once, because they write the same bytes. If it fails, a new
    folder that is incomplete is removed. Raises ``UsageError``.
    """
    is_new = not folder.exists()
    try:
        private_folder(folder)
        for name, content in files.items():
            write_atomically(folder / name, content, sync=False)
    except (OSError, UsageError) as error:
        if is_new and not _are_whole(folder, files):
            remove_tree(folder)
        raise UsageError(
            f"the checkpoint {folder} cannot be written: {error}. Choose another cache with VLLM_REGRESS_CACHE"
        ) from None
    return folder


def ensure_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Return ``folder``, which is written unless every file exists with its full length.

    Raises ``UsageError``.
    """
    return folder if _are_whole(folder, files) else publish(folder, files)


def _are_whole(folder: Path, files: Mapping[str, bytes]) -> bool:
    with suppress(OSError):
        return all(
            (folder / name).stat().st_size == len(content) for name, content in files.items()
        )
    return False


def _is_whole(
    folder: Path, files: Mapping[str, bytes], shapes: Mapping[str, tuple[int, ...]]
) -> bool:
    """Return whether every file exists with its full length.

    Cache cleaners and full disks leave incomplete checkpoints.
    """
    try:
        with (folder / _WEIGHTS).open("rb") as stored:
            header = int.from_bytes(stored.read(8), "little")
            expected = 8 + header + 4 * sum(math.prod(shape) for shape in shapes.values())
            if os.fstat(stored.fileno()).st_size != expected:
                return False
        return _are_whole(folder, files)
    except OSError:
        return False


def weight_file(
    shapes: Mapping[str, tuple[int, ...]], seed: int, kept: Collection[str] | None = None
) -> bytes:
    """Return the weights as a safetensors file. ``kept``: names of the weights to write (default:
    all).

    Norms are one, biases small, and matrices have unit gain, so that the logits of a random model
    differ from token to token. The values are uniform, and stored as float32; loaders convert them
    to the configuration's bfloat16.
    """
    bits = top_bits(seed)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    values: dict[str, bytes] = {}
    for name, shape in shapes.items():
        values[name] = _values(name, shape, bits).tobytes()
    end = 0
    for name in sorted(values if kept is None else values.keys() & kept):
        begin, end = end, end + len(values[name])
        header[name] = {"dtype": "F32", "shape": shapes[name], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stored = (values[name] for name in header if name in values)
    return b"".join((len(text).to_bytes(8, "little"), text, *stored))


def _values(name: str, shape: tuple[int, ...], bits: Iterator[int]) -> array[float]:
    count = math.prod(shape)
    if len(shape) == 1 and name.endswith(".weight"):  # a norm: no other weight has one dimension
        return array("f", [1.0]) * count
    deviation = 0.02 if len(shape) == 1 else 1 / math.sqrt(math.prod(shape[1:]))
    (factor,) = array("f", [deviation * math.sqrt(3)])
    # From -1 to 1, in steps that a float32 has: the deviation is 1 / sqrt(3).
    return array("f", (((drawn / 2**23) - 1) * factor for drawn in islice(bits, count)))
