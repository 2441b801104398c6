"""Images for requests over HTTP, made on this machine without an image library."""

from __future__ import annotations

import base64
import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PIXEL = b"\x10\x80\xf0"


def png_url(width: int, height: int, *, keep: int | None = None) -> str:
    """Return a ``data:`` URL of a PNG of one colour, ``width`` by ``height`` pixels, as the value
    of ``image_url`` in a chat request.

    vLLM's caches distinguish images of different sizes. ``keep``: keep only this many bytes of the
    file, as after an incomplete download.
    """
    rows = b"".join(b"\x00" + _PIXEL * width for _ in range(height))
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
