"""Speech requests over HTTP, and which errors mean that this vLLM does not support them.

The server is httpx's mock transport.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import httpx
import pytest

from pytest_vllm_regress import wav
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.errors import RemoteError, Unsupported

from .test_server import unconnected

TRANSCRIBE, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
Answers = Mapping[str, httpx.Response]


def answering(answers: Answers, needs: str = "") -> tuple[Server, list[httpx.Request]]:
    """Return a server with these addresses, and the list of requests that it gets."""
    server, requests = unconnected(9, model="speech"), []
    server.model, server.sound_needs = "m", needs

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        answer = answers.get(request.url.path, httpx.Response(404, json={"detail": "Not Found"}))
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    server.client = httpx.Client(base_url=server.root_url, transport=httpx.MockTransport(respond))
    return server, requests


def streamed(*contents: str | None, end: str = "[DONE]") -> httpx.Response:
    chunks = [json.dumps({"choices": [{"delta": {"content": content}}]}) for content in contents]
    text = "".join(f"data: {chunk}\n\n" for chunk in (*chunks, end))
    return httpx.Response(
        200, headers={"content-type": "text/event-stream; charset=utf-8"}, text=text
    )


def test_the_file_and_the_options_are_sent() -> None:
    server, requests = answering({TRANSCRIBE: httpx.Response(200, json={"text": " A tone."})})
    assert server.transcribe(wav(0.5), language="en", temperature=0) == " A tone."
    (sent,) = requests
    body = sent.content
    assert sent.headers["content-type"].startswith("multipart/form-data") and wav(0.5) in body
    for name, value in (("model", "m"), ("language", "en"), ("temperature", "0")):
        assert f'name="{name}"\r\n\r\n{value}\r\n'.encode() in body
    assert b'name="stream"' not in body


def test_a_stream_is_joined() -> None:
    server, requests = answering({TRANSLATE: streamed(" A", None, " tone.")})
    assert server.translate(wav(0.5), stream=True) == " A tone."
    assert b'name="stream"\r\n\r\ntrue\r\n' in requests[0].content


def test_a_stream_without_an_end_is_an_error() -> None:
    server, _ = answering({TRANSCRIBE: streamed(" A", end='{"error": {"message": "gone"}}')})
    with pytest.raises(RemoteError, match=r"ended without \[DONE\]"):
        server.transcribe(wav(0.5), stream=True)


BROKEN = httpx.Response(400, json={"error": {"message": "Invalid or unsupported audio file."}})
WHOLE = httpx.Response(200, json={"text": "x"})
LACKING = httpx.Response(
    200, json={"error": {"message": "Please install vllm[audio] for audio support", "code": 500}}
)  # 0.15


@pytest.mark.parametrize(
    ("answers", "needs", "stream", "claim"),
    [
        ({}, "", False, r"serves no /v1/audio/transcriptions .*HTTP 404"),
        ({}, "", True, r"serves no /v1/audio/transcriptions .*HTTP 404"),
        ({TRANSCRIBE: BROKEN}, "librosa", False, r"without librosa \(needs vllm\[audio\]\)"),
        ({TRANSCRIBE: BROKEN}, "soundfile", True, r"without soundfile \(needs vllm\[audio\]\)"),
        ({TRANSCRIBE: LACKING}, "librosa", False, "without librosa"),
        ({TRANSCRIBE: LACKING}, "librosa", True, "without librosa"),
        ({TRANSCRIBE: WHOLE}, "", True, "streams no transcriptions"),
    ],
)
def test_missing_addresses_and_packages_are_not_applicable(
    answers: Answers, needs: str, stream: bool, claim: str
) -> None:
    server, _ = answering(answers, needs)
    with pytest.raises(Unsupported, match=claim):
        server.transcribe(wav(0.5), stream=stream)


@pytest.mark.parametrize("status", [200, 500])
def test_a_chat_with_a_sound_is_not_applicable_without_packages(status: int) -> None:
    chat = "/v1/chat/completions"
    lacking = httpx.Response(
        status, json={"error": {"message": "Please install vllm[audio] for audio support"}}
    )
    server, _ = answering({chat: lacking}, "soundfile")
    with pytest.raises(Unsupported, match=r"without soundfile \(needs vllm\[audio\]\)"):
        server.chat([])
    server, _ = answering(
        {chat: httpx.Response(status, json={"error": {"message": "another"}})}, "soundfile"
    )
    with pytest.raises(RemoteError, match="another"):
        server.chat([])
    server, _ = answering({chat: lacking})  # it has the packages, so the words are wrong
    with pytest.raises(RemoteError, match="Please install"):
        server.chat([])


def test_a_broken_file_is_an_error_if_complete_files_are_read() -> None:
    server, _ = answering({TRANSCRIBE: BROKEN})
    with pytest.raises(RemoteError, match=r"HTTP 400: .*Invalid or unsupported"):
        server.transcribe(wav(0.5, keep=30))
    server, _ = answering({TRANSLATE: WHOLE, TRANSCRIBE: BROKEN}, "soundfile")
    server.translate(wav(0.5))  # so something reads it
    with pytest.raises(RemoteError, match="HTTP 400"):
        server.transcribe(wav(0.5, keep=30))


@pytest.mark.parametrize(
    "refused",
    [
        httpx.Response(404, json={}),
        httpx.Response(
            400, json={"error": {"message": "The model does not support Completions API"}}
        ),
    ],
)
def test_a_model_that_only_transcribes_is_checked_with_a_sound(refused: httpx.Response) -> None:
    server, requests = answering(
        {"/v1/completions": refused, TRANSCRIBE: httpx.Response(200, json={"text": ""})}
    )
    server.check()
    assert [request.url.path for request in requests] == ["/v1/completions", TRANSCRIBE]
    for no in (BROKEN, LACKING):
        with pytest.raises(Unsupported, match="without soundfile"):
            answering({"/v1/completions": refused, TRANSCRIBE: no}, "soundfile")[0].check()


def test_other_error_responses_are_not_changed() -> None:
    broken: Answers = {
        "/v1/completions": httpx.Response(500, json={}),
        "/health": httpx.Response(200),
    }
    for answers, status in (({}, 404), (broken, 500)):
        with pytest.raises(RemoteError, match=f"HTTP {status}"):
            answering(answers)[0].check()
