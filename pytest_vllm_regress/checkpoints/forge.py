"""The checkpoint forge: small, valid Hugging Face checkpoints with seeded weights, written without downloads and without transformers.

What there is stands in ``kinds``. The same text becomes the same token ids, and the same seed the same weights, whatever version of transformers
reads them and whatever version of numpy drew them.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from ..errors import UsageError
from ..util.documents import load_json
from ..util.files import private_folder
from .kinds import kind_named
from .shapes import SHAPES, written

MAX_CONFIG = 4 * 1024 * 1024

_WEIGHTS = "model.safetensors"
_RECIPE = 2  # of the weights' values: raise it when they change. Everything else that is written is hashed as it is


def architecture_of(kind: str) -> str:
    """The model class vLLM and transformers know the checkpoint by."""
    return kind_named(kind).architecture


def architectures_of(model: str) -> tuple[str, ...]:
    """The model classes that the checkpoint at the path ``model`` names; none where it is no path, or names none."""
    try:
        named = load_json(Path(model, "config.json"), MAX_CONFIG)["architectures"]
    except (UsageError, LookupError, TypeError):
        return ()
    return tuple(filter(lambda each: isinstance(each, str), named)) if isinstance(named, list) else ()


def ensure_checkpoint(kind: str, root: Path, *, seed: int = 0, head: int = 32) -> Path:
    """The absolute path of the checkpoint of ``kind`` below ``root``; written when it is not there yet, or has lost files.

    Its name carries a hash of everything written, so a changed forge never takes an old checkpoint for its own. Several processes may ask
    at once. ``seed`` (zero or more) chooses the weights, ``head`` (32 or 64) is the width
    of an attention head. About 2 MB and a tenth of a second the first time.

    Raises ``UsageError`` for an unknown kind, a negative seed, and a place that cannot be written.
    """
    made = kind_named(kind)
    if seed < 0:
        raise UsageError(f"the seed of a forged model is zero or more, not {seed}")
    words, shape = made.words(), SHAPES[head]
    documents = {"config.json": made.config(words, shape), **made.beside(words)}
    files = {**{name: written(content) for name, content in documents.items()}, **words.files}
    drawn = dict(made.weights(words.size, shape))
    shapes = {name: size for name, size in drawn.items() if made.keeps(name)}
    key = hashlib.sha256(repr((_RECIPE, seed, sorted(files.items()), sorted(shapes.items()))).encode()).hexdigest()[:12]
    root = root.absolute()
    place = root / f"{kind}-{key}"
    if _is_whole(place, files, shapes):
        return place
    return publish(place, {**files, _WEIGHTS: weight_file(drawn, seed, frozenset(shapes))})


def publish(place: Path, files: Mapping[str, bytes]) -> Path:
    """Write a folder of these files in one step, or mend what it has lost; others may do the same at the same time. Raises ``UsageError``."""
    part = place.with_name(f".{place.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        private_folder(place.parent)
        part.mkdir()
        for name, content in files.items():
            (part / name).write_bytes(content)
        _move(part, place)
    except OSError as error:
        raise UsageError(
            f"the checkpoint {place} cannot be written: {error.strerror or error}. Give another cache by VLLM_REGRESS_CACHE"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return place


def _is_whole(place: Path, files: Mapping[str, bytes], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether every file is there in its full length. Cache cleaners and full disks leave less."""
    try:
        with (place / _WEIGHTS).open("rb") as stored:
            header = int.from_bytes(stored.read(8), "little")
            expected = 8 + header + 4 * sum(math.prod(shape) for shape in shapes.values())
            if os.fstat(stored.fileno()).st_size != expected:
                return False
        return all((place / name).stat().st_size == len(content) for name, content in files.items())
    except OSError:
        return False


def _move(part: Path, place: Path) -> None:
    try:
        os.rename(part, place)
    except OSError:
        if not place.is_dir():
            raise
        # Another process was faster, or the place has lost files. The same bytes go in, each file in one step, so readers notice nothing.
        for file in part.iterdir():
            os.replace(file, place / file.name)


def weight_file(shapes: Mapping[str, tuple[int, ...]], seed: int, kept: Collection[str] | None = None) -> bytes:
    """The weights as a safetensors file: norms are one, biases small, matrices of unit gain, so that the logits of a random model differ from
    token to token. ``kept``: the names of those that are written (default: all that are drawn).

    Uniform values made from the generator's raw bits: numpy promises those for good, its distributions it may change. Stored as float32;
    loaders convert to the configuration's bfloat16.
    """
    import numpy as np
    from safetensors.numpy import save

    bits = np.random.PCG64(seed)
    tensors = {}
    for name, shape in shapes.items():
        if len(shape) == 1 and name.endswith(".weight"):  # of a norm: nothing else has weights of one dimension
            tensors[name] = np.ones(shape, np.float32)
            continue
        deviation = 0.02 if len(shape) == 1 else 1 / math.sqrt(math.prod(shape[1:]))
        raw = np.asarray(bits.random_raw(math.prod(shape)), np.uint64) >> np.uint64(
            40
        )  # 24 bits: a float32 holds them exactly
        unit = raw.astype(np.float32) / np.float32(2**23) - np.float32(1)  # from -1 to 1: deviation 1 / sqrt(3)
        tensors[name] = (unit * np.float32(deviation * math.sqrt(3))).reshape(shape)
    return save({name: each for name, each in tensors.items() if kept is None or name in kept}, {"format": "pt"})
