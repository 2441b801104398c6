"""Audio over HTTP: transcriptions and translations, whole and streamed. vLLM reads files with the
packages of its extra ``audio``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pytest_vllm_regress import RemoteError, Script, Server, wav

pytestmark = pytest.mark.vllm_engine(model="speech", generation=["V0", "V1"])
SCRIPT = Script.text(" A tone.").prompt()


def test_transcription(vllm_server: Server) -> None:
    first, second = (
        vllm_server.transcribe(wav(1.5), language="en", temperature=0) for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize("way", ["whole", "stream"])
def test_transcription_with_a_script(vllm_server: Server, way: str) -> None:
    text = vllm_server.transcribe(wav(1.5), stream=way == "stream", language="en", prompt=SCRIPT)
    assert text.strip() == "A tone."


@pytest.mark.parametrize("way", ["whole", "stream"])
def test_translation_with_a_script(vllm_server: Server, way: str) -> None:
    text = vllm_server.translate(wav(1.5), stream=way == "stream", language="de", prompt=SCRIPT)
    assert text.strip() == "A tone."


def test_language_not_named(vllm_server: Server) -> None:
    assert vllm_server.transcribe(wav(1.5), prompt=SCRIPT).strip() == "A tone."


def test_broken_file(vllm_server: Server) -> None:
    with pytest.raises(RemoteError, match=r"HTTP [45]"):
        vllm_server.transcribe(wav(1.5, keep=30), language="en")
    vllm_server.check()


def test_several_at_once(vllm_server: Server) -> None:
    vllm_server.transcribe(
        wav(0.5), language="en", prompt=SCRIPT
    )  # skips the test if vLLM cannot do it

    async def ask() -> list[str]:
        async with vllm_server.async_client() as client:

            def post(number: int) -> Any:
                fields = {
                    "model": vllm_server.model,
                    "language": "en",
                    "prompt": Script.text(f" {number}").prompt(),
                }
                return client.post(
                    "/v1/audio/transcriptions", data=fields, files={"file": wav(0.5)}
                )

            answers = await asyncio.gather(*map(post, range(8)))
            return [answer.json()["text"].strip() for answer in answers]

    assert asyncio.run(ask()) == [str(number) for number in range(8)]
