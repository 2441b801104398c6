"""What a server hears: transcriptions of sound files, and translations into English."""

from __future__ import annotations

from typing import Any, Literal

import httpx

from ...dialogue.sounds import wav
from ...errors import Unsupported
from .transport import Exchange, Transport, error_in

_AUDIO = "/v1/audio/"
_LEAST_S = 0.1


class SoundRequests(Transport):
    """What a server with ``model="speech"`` is asked.

    ``sound_needs`` names the package without which its vLLM reads no sound file; empty where it has what it needs.
    """

    sound_needs = ""

    def transcribe(self, sound: bytes, *, stream: bool = False, timeout: float | None = None, **options: Any) -> str:
        """The text that is heard in ``sound``, a file as ``wav`` makes one; whole, or put together from a stream.

        ``options``: ``language``, ``prompt`` (what was said before; a script counts there), ``temperature`` and the like. Errors as of ``chat``;
        ``Unsupported`` where this vLLM has no such address, or reads no sound files because packages are missing.
        """
        return self._heard("transcriptions", sound, stream, timeout, options)

    def translate(self, sound: bytes, *, stream: bool = False, timeout: float | None = None, **options: Any) -> str:
        """The same in English. Options and errors as of ``transcribe``."""
        return self._heard("translations", sound, stream, timeout, options)

    def _heard(
        self,
        task: Literal["transcriptions", "translations"],
        sound: bytes,
        stream: bool,
        timeout: float | None,
        options: dict[str, Any],
    ) -> str:
        path, form = _AUDIO + task, self._form(sound, {**options, **({"stream": True} if stream else {})})
        self.scripts.admit(options)
        if not stream:
            response = self._exchange(
                lambda seconds: self.client.post(path, timeout=seconds, **form), self._deadline("request", timeout)
            )
            self._refused(path, response)
            return str(self._json(response)["text"])
        response, lines = self._streamed(path, timeout, **form)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            whole = response if response.is_error else httpx.Response(response.status_code, text="\n".join(lines))
            self._refused(path, whole)
            self._json(whole)
            raise Unsupported(f"it streams no {task}", refused_by="this vLLM")
        choices = (choice for event in self._events(lines) for choice in event["choices"])
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    def _form(self, sound: bytes, options: dict[str, Any]) -> dict[str, Any]:
        return {"data": {"model": self.model, **options}, "files": {"file": ("sound.wav", sound, "audio/wav")}}

    def _least_sound(self, exchange: Exchange, refused: httpx.Response) -> httpx.Response:
        """The answer to the least sound, where this vLLM has ``refused`` the least text because its model only transcribes; else ``refused``."""
        if refused.status_code != 404 and "does not support Completions" not in refused.text:
            return refused
        path, form = f"{_AUDIO}transcriptions", self._form(wav(_LEAST_S), {"language": "en"})
        answer = exchange(lambda seconds: self.client.post(path, timeout=seconds, **form))
        if answer.status_code == 404:
            return refused
        self._refused(path, answer)
        return answer

    def _refused(self, path: str, response: httpx.Response) -> None:
        if response.status_code == 404:
            raise Unsupported(f"it serves no {path}", refused_by="this vLLM (HTTP 404)")
        if not error_in(response):
            self.sound_needs = ""  # whatever reads it: torchcodec may be there, and work or not
        elif self.sound_needs:
            raise Unsupported(f"it reads no sound files without {self.sound_needs}", needs="vllm[audio]")
