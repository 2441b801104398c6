"""vllm#36397: run-batch must fail if the URL of its input answers with an error status."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe, RemoteError


class InputServer(ThreadingHTTPServer):
    """Serves ``content`` at /input.jsonl, and answers every other path with status 404 and no body."""

    content = b""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)

    def option(self, name: str) -> list[str]:
        """Return the option that names an input of this server."""
        return ["-i", f"http://127.0.0.1:{self.server_port}/{name}"]


class _Handler(BaseHTTPRequestHandler):
    server: InputServer

    def do_GET(self) -> None:
        content = self.server.content if self.path == "/input.jsonl" else b""
        self.send_response(200 if content else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to standard error."""


@pytest.fixture
def input_server() -> Iterator[InputServer]:
    with InputServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.vllm_case("vllm-36397")
def test_missing_input_is_an_error(
    vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, input_server: InputServer
) -> None:
    body = {"model": vllm_model_path, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
    input_server.content = json.dumps(line).encode()

    def answers(name: str) -> list[dict[str, Any]]:
        # Of two options -i the last one counts, so that the URL replaces the file of the probe.
        options = ["--max-model-len", "256", *input_server.option(name)]
        batch = vllm_probe("batch_files:run", model=vllm_model_path, lines=[], options=options)
        return list(batch["answers"])

    (answer,) = answers("input.jsonl")
    vllm_at_work("a batch from a URL is answered", answer["response"]["status_code"] == 200)
    try:
        count = len(answers("missing.jsonl"))
    except RemoteError as raised:
        assert "404" in str(raised), f"expected an error that names the status, got {raised}"
    else:
        pytest.fail(f"expected an error for an input with status 404, got an output of {count} lines")
