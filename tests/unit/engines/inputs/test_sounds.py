"""Sound files, read back as WAV."""

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
def test_a_tone_has_the_requested_pitch_and_length(seconds: float, pitch: int) -> None:
    tone = samples(wav(seconds, pitch=pitch))
    assert len(tone) == 16000 * seconds and 32000 < max(tone) <= 32767
    rises = sum(before < 0 <= after for before, after in itertools.pairwise(tone))
    assert rises == pytest.approx(seconds * pitch, abs=1)


def test_a_truncated_file_is_the_beginning_of_the_whole() -> None:
    broken = wav(0.5, keep=30)
    assert broken == wav(0.5)[:30]
    with pytest.raises((EOFError, wave.Error)):
        samples(broken)
