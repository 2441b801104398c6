"""Open the file that ``explain`` reads, or standard input, after a look at its beginning."""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ...errors import UsageError
from ...util.files import expand_home

_LOOKED_AT = 4096
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gzip -cd"),
    b"BZh": ("bzip2", "bzip2 -cd"),
    b"\xfd7zXZ\0": ("xz", "xz -cd"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -cd"),
}
"""Compression formats by the first bytes of a file: name, and the command that decompresses it."""


@contextlib.contextmanager
def opened(file: str, warn: Callable[[str], None]) -> Iterator[BinaryIO]:
    if file == "-":
        _check(sys.stdin.buffer, "standard input", warn)
        yield sys.stdin.buffer
        return
    path = expand_home(file)
    if path.exists() and not path.is_file():
        raise UsageError(
            f"{file}: not a regular file. Give a log, or - for standard input: COMMAND | vllm-regress explain -"
        )
    if not path.is_file():
        raise UsageError(f"{file}: no such file. Give a log, or - for standard input")
    try:
        with path.open("rb") as stream:
            _check(stream, file, warn)
            yield stream
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None


def _check(stream: BinaryIO, source: str, warn: Callable[[str], None]) -> None:
    """Warn about an empty log. Raises ``UsageError`` for UTF-16, compressed and binary files."""
    if not isinstance(stream, io.BufferedReader):
        return
    beginning = stream.peek(_LOOKED_AT)[:_LOOKED_AT]
    if not beginning:
        warn(f"note: {source} is empty")
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{source}: is in UTF-16. Convert it first: iconv -f UTF-16 -t UTF-8")
    for start, (name, command) in _COMPRESSED.items():
        if beginning.startswith(start):
            raise UsageError(
                f"{source}: is compressed by {name}. Unpack it first: {command} LOG | vllm-regress explain -"
            )
    if b"\0" in beginning:
        raise UsageError(f"{source}: is not text: it contains NUL bytes")
