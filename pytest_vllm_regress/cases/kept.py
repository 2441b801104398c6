"""The valid cases of a directory, kept in the cache as they were read, because parsing and checking
the files takes most of the time of a command that only lists or looks up cases."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .._version import __version__
from ..errors import UsageError
from ..util.codec import built
from ..util.files import read_bounded, write_atomically
from ..util.paths import writable_root
from .model import Case

MAX_BYTES = 64 * 1024 * 1024
FEWEST = 20
"""Fewer cases are not kept: they are read in less time than anybody notices."""


@dataclass(frozen=True)
class LoadedCases:
    """The valid cases of a directory, by id, and one message for each file that is not valid."""

    cases: tuple[Case, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class _Kept:
    """Cases, and a digest of all that they were read from."""

    source: bytes
    loaded: LoadedCases


def load_kept(
    root: Path, files: Sequence[Path], limit: int, load: Callable[[], LoadedCases]
) -> LoadedCases:
    """Return the cases in ``files`` (each of at most ``limit`` bytes) below ``root``: as they were
    kept, if neither the files nor this package's format of cases has changed; otherwise from ``load``.

    What has problems is not kept, and neither is anything where the cache cannot be written.
    """
    if len(files) < FEWEST:
        return load()
    try:
        source = hashlib.sha256(b"\0".join(_contents(files, limit))).digest()
        path = writable_root() / "cases" / hashlib.sha256(bytes(root)).hexdigest()[:16]
    except UsageError:
        return load()
    with contextlib.suppress(UsageError, msgspec.DecodeError):  # also what another version wrote
        kept = msgspec.msgpack.decode(
            read_bounded(path, MAX_BYTES), type=built(_Kept), dec_hook=lambda kind, text: kind(text)
        )
        if kept.source == source:
            return kept.loaded
    loaded = load()
    if not loaded.problems:
        with contextlib.suppress(UsageError):
            write_atomically(
                path, msgspec.msgpack.encode(_Kept(source, loaded), enc_hook=str), sync=False
            )
    return loaded


def _contents(files: Iterable[Path], limit: int) -> Iterable[bytes]:
    yield __version__.encode()
    for name in ("loading.py", "model.py"):
        yield Path(__file__).with_name(name).read_bytes()
    for file in files:
        yield bytes(file)
        yield read_bounded(file, limit)
