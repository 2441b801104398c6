"""Images, sounds and prompt embeddings for requests over HTTP, made on this machine without the
libraries that read them."""

from __future__ import annotations

import array
import base64
import io
import random
import struct
import sys
import wave
import zipfile
import zlib
from collections.abc import Sequence

from ...target_site.vllm_regress_target.hosts.inputs import RATE, tone

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PIXEL = b"\x10\x80\xf0"
_MAX_AMPLITUDE = 2**15 - 1
_FOLDER = "tensor/"


def png_url(width: int, height: int, *, colour: bytes = _PIXEL, keep: int | None = None) -> str:
    """Return a ``data:`` URL of a PNG of one colour, ``width`` by ``height`` pixels, as the value
    of ``image_url`` in a chat request.

    ``colour``: red, green and blue. ``keep``: keep only this many bytes of the file, as after an
    incomplete download.
    """
    rows = b"".join(b"\x00" + colour * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    file = (
        _SIGNATURE
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(rows))
        + _chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(file[:keep]).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def wav(seconds: float, *, pitch: float = 440, keep: int | None = None) -> bytes:
    """Return a WAV file with a tone of ``pitch`` Hz: one channel, 16 bits, 16000 samples per
    second, the tone of ``{"audio": {"seconds": ...}}``.

    ``keep``: keep only this many bytes of the file, as after an incomplete upload.
    """
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((tone(seconds, pitch) * _MAX_AMPLITUDE).astype("<i2").tobytes())
    return file.getvalue()[:keep]


def tensor_base64(rows: Sequence[Sequence[float]]) -> str:
    """Return a float32 matrix as ``torch.save`` writes it, without torch, in base64. It is the value of
    ``prompt_embeds`` in a completion, with one row per token.

    ``torch.load`` reads it with ``weights_only`` from PyTorch 1.13 on. Raises ``ValueError`` if
    rows differ in length.
    """
    width = len(rows[0]) if rows else 0
    values = array.array("f", [value for row in rows for value in row])
    if any(len(row) != width for row in rows):
        raise ValueError(
            f"all rows of a matrix must have the same length; these have {sorted({len(row) for row in rows})}"
        )
    if sys.byteorder == "big":
        values.byteswap()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_FOLDER + "data.pkl", _pickled(len(rows), width))
        archive.writestr(_FOLDER + "byteorder", "little")
        archive.writestr(_FOLDER + "data/0", values.tobytes())
        archive.writestr(_FOLDER + "version", "3\n")
    return base64.b64encode(file.getvalue()).decode()


def noise(length: int, width: int, *, seed: int = 0) -> list[list[float]]:
    """Return a row of normal noise for each token. Equal seeds give equal noise."""
    generator = random.Random(seed)
    return [[generator.gauss(0, 1) for _ in range(width)] for _ in range(length)]


def _pickled(rows: int, columns: int) -> bytes:
    """Return torch's pickle of a matrix in protocol 2: a call of _rebuild_tensor_v2 with storage 0,
    offset, shape, strides, no gradient and no hooks.

    It is written opcode by opcode, because Python's own writer imports the functions that it names,
    and torch is not installed here.
    """
    size, length, width = (struct.pack("<i", count) for count in (rows * columns, rows, columns))
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
        b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"
        b"0X\x03\0\0\0cpuJ%btQ"
        b"J\0\0\0\0J%bJ%b\x86J%bJ\x01\0\0\0\x86\x89ccollections\nOrderedDict\n)RtR."
    ) % (size, length, width, width)
