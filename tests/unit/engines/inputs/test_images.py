"""Forged images: size and truncation."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest

from pytest_vllm_regress import png_url


def chunks(file: bytes) -> dict[bytes, bytes]:
    """Return the chunks of a PNG by kind and check their checksums."""
    by_kind, at = {}, 8
    while at < len(file):
        (length,) = struct.unpack_from(">I", file, at)
        kind, data = file[at + 4 : at + 8], file[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", file, at + 8 + length) == (zlib.crc32(kind + data),)
        by_kind[kind] = data
        at += 12 + length
    return by_kind


@pytest.mark.parametrize(("width", "height"), [(1, 1), (56, 28), (500, 19)])
def test_a_png_has_the_requested_size(width: int, height: int) -> None:
    kind, data = png_url(width, height).split(",")
    file = base64.b64decode(data)
    assert kind == "data:image/png;base64" and file.startswith(b"\x89PNG\r\n\x1a\n")
    parts = chunks(file)
    assert struct.unpack(">IIBB", parts[b"IHDR"][:10]) == (width, height, 8, 2) and b"IEND" in parts
    assert len(zlib.decompress(parts[b"IDAT"])) == height * (1 + 3 * width)


def test_a_truncated_image_is_the_beginning_of_the_whole() -> None:
    whole, broken = (
        base64.b64decode(png_url(56, 56, keep=keep).split(",")[1]) for keep in (None, 60)
    )
    assert broken == whole[:60] and len(whole) > 60
