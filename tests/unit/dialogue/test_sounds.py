"""Sounds as files: what a reader of WAV finds in them."""

from __future__ import annotations

import io
import itertools
import struct
import wave

import pytest

from pytest_vllm_regress import wav


def samples(file: bytes) -> tuple[int, ...]:
    with wave.open(io.BytesIO(file)) as read:
        assert (read.getnchannels(), read.getsampwidth(), read.getframerate()) == (1, 2, 16000)
        return struct.unpack(f"<{read.getnframes()}h", read.readframes(read.getnframes()))


@pytest.mark.parametrize(("seconds", "pitch"), [(0.5, 440), (1.0, 1000)])
def test_a_tone_of_this_pitch_and_length(seconds: float, pitch: int) -> None:
    found = samples(wav(seconds, pitch=pitch))
    assert len(found) == 16000 * seconds and 32000 < max(found) <= 32767
    rises = sum(before < 0 <= after for before, after in itertools.pairwise(found))
    assert rises == pytest.approx(seconds * pitch, abs=1)


def test_a_file_that_broke() -> None:
    broken = wav(0.5, keep=30)
    assert broken == wav(0.5)[:30]
    with pytest.raises((EOFError, wave.Error)):
        samples(broken)
