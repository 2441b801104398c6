"""Speech requests to a server: transcriptions of sound files, and translations into English."""

from __future__ import annotations

from typing import Any, Literal

import httpx

from ...errors import Unsupported
from ..inputs.sounds import wav
from .transport import Exchange, Transport, error_in

_AUDIO = "/v1/audio/"
_SMALLEST_S = 0.1


class SoundRequests(Transport):
    """Requests to a server with ``model="speech"``."""

    def transcribe(
        self, sound: bytes, *, stream: bool = False, timeout: float | None = None, **options: Any
    ) -> str:
        """Return the text in ``sound``, a file such as ``wav`` makes, whole or joined from a
        stream.

        ``options``: ``language``, ``prompt`` (the preceding text, which may contain a script),
        ``temperature`` and so on. Errors as in ``chat``, and
        ``Unsupported`` if this vLLM does not have the address, or reads no sound files because
        packages are missing.
        """
        return self._recognize("transcriptions", sound, stream, timeout, options)

    def translate(
        self, sound: bytes, *, stream: bool = False, timeout: float | None = None, **options: Any
    ) -> str:
        """Return the text in ``sound``, translated into English.

        Options and errors as in ``transcribe``.
        """
        return self._recognize("translations", sound, stream, timeout, options)

    def _recognize(
        self,
        task: Literal["transcriptions", "translations"],
        sound: bytes,
        stream: bool,
        timeout: float | None,
        options: dict[str, Any],
    ) -> str:
        path, form = (
            _AUDIO + task,
            self._form(sound, {**options, **({"stream": True} if stream else {})}),
        )
        self.scripts.admit(options)
        if not stream:
            response = self._exchange(
                lambda: self.client.post(path, timeout=None, **form),
                self._deadline("request", timeout),
            )
            self._check_supported(path, response)
            return str(self._json(response)["text"])
        response, lines = self._post_stream(path, timeout, **form)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            unstreamed = (
                response
                if response.is_error
                else httpx.Response(response.status_code, text="\n".join(lines))
            )
            self._check_supported(path, unstreamed)
            self._json(unstreamed)
            raise Unsupported(f"it streams no {task}", refused_by="this vLLM")
        choices = (choice for event in self._parse_events(lines) for choice in event["choices"])
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    def _form(self, sound: bytes, options: dict[str, Any]) -> dict[str, Any]:
        return {
            "data": {"model": self.model, **options},
            "files": {"file": ("sound.wav", sound, "audio/wav")},
        }

    def _send_smallest_sound(self, exchange: Exchange, refused: httpx.Response) -> httpx.Response:
        """Return the response to the smallest sound request if ``refused``, the response to a text,
        shows that the model only transcribes.

        Otherwise return ``refused``.
        """
        if refused.status_code != 404 and "does not support Completions" not in refused.text:
            return refused
        path, form = f"{_AUDIO}transcriptions", self._form(wav(_SMALLEST_S), {"language": "en"})
        response = exchange(lambda: self.client.post(path, timeout=None, **form))
        if response.status_code == 404:
            return refused
        self._check_supported(path, response)
        return response

    def _check_supported(self, path: str, response: httpx.Response) -> None:
        if response.status_code == 404:
            raise Unsupported(f"it serves no {path}", refused_by="this vLLM (HTTP 404)")
        if not error_in(response):
            self.sound_needs = ""  # it read the file, perhaps with torchcodec, which may be installed and still not work
        elif self.sound_needs:
            raise self._reads_no_sounds()
