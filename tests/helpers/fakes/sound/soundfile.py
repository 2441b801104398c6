"""A fake of the package soundfile that reads WAV files with the standard library, so that tests of
audio need no download."""

from __future__ import annotations

import wave
from typing import Any

import numpy as np


class LibsndfileError(RuntimeError):
    """A file that cannot be read. The code is libsndfile's code for an unknown format."""

    code = 1


class SoundFile:
    """A 16-bit WAV file, open for reading."""

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
        """Return all samples, from -1 to 1, in one row per frame if there are several channels."""
        samples = np.frombuffer(self._file.readframes(self.frames), "<i2").astype(dtype) / 2**15
        return samples.reshape(-1, self.channels) if always_2d or self.channels > 1 else samples


def available_formats() -> dict[str, str]:
    """Return the formats; mistral_common calls this when it is imported."""
    return {"WAV": "WAV (Microsoft)"}
