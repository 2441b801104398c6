"""Sounds for requests over HTTP, made on this machine without a sound library."""

from __future__ import annotations

import io
import wave

from ...target_site.vllm_regress_target.hosts.inputs import RATE, tone

_MAX_AMPLITUDE = 2**15 - 1


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
