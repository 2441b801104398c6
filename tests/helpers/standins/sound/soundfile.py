"""As much of the package soundfile as vLLM reads a WAV file with, by the standard library: so a server that hears needs no download."""

from __future__ import annotations

import wave
from typing import Any

import numpy as np


class LibsndfileError(RuntimeError):
    """What cannot be read. The code is libsndfile's for an unknown format."""

    code = 1


class SoundFile:
    """A WAV file of 16 bits, open for reading."""

    def __init__(self, path: Any) -> None:
        try:
            self._file = wave.open(path)  # noqa: SIM115 - closed by __exit__
        except (EOFError, wave.Error) as error:
            raise LibsndfileError(str(error)) from None
        self.samplerate = self._file.getframerate()
        self.channels = self._file.getnchannels()
        self.frames = self._file.getnframes()

    def __enter__(self) -> SoundFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, dtype: str, always_2d: bool = False) -> Any:
        """All samples, from -1 to 1; a row for each moment where there are several channels."""
        found = np.frombuffer(self._file.readframes(self.frames), "<i2").astype(dtype) / 2**15
        return found.reshape(-1, self.channels) if always_2d or self.channels > 1 else found


def available_formats() -> dict[str, str]:
    """mistral_common asks at its import."""
    return {"WAV": "WAV (Microsoft)"}
