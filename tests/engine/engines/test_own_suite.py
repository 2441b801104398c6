"""A user's own suite on two real releases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.environments import require_environment

pytestmark = pytest.mark.engine
SUITE = """
import httpx, pytest

@pytest.fixture(scope="session")
def server(vllm_engines):
    return vllm_engines(front="serve")

@pytest.fixture
def client(server):
    key = {"Authorization": f"Bearer {server.api_key}"}
    with httpx.Client(base_url=server.base_url, headers=key, timeout=60) as client:
        yield client

def test_chat(server, client):
    server.script(["Hello"])
    body = {"model": server.model, "messages": [{"role": "user", "content": "Hi"}]}
    answer = client.post("/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == "Hello"

def test_messages(server, client):
    body = {"model": server.model, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    assert client.post("/messages", json=body).status_code == 200
"""


def test_a_suite_by_release(tmp_path: Path) -> None:
    releases = ("vllm-0.8.5", "vllm-0.33.0")
    for name in releases:
        require_environment(name)
    (tmp_path / "test_own.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest_vllm_regress", "matrix", "--yes", "--out", "o.json"]
    command += [word for name in releases for word in ("--env", name)]
    done = subprocess.run(
        [*command, "--", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    old, new = json.loads((tmp_path / "o.json").read_text())["runs"]
    assert [test["outcome"] for test in old["tests"].values()] == ["passed", "failed"]
    assert "POST /v1/messages: status 404" in old["tests"]["test_own.py::test_messages"]["text"]
    assert "failed: /v1/messages exists since 0.11.1" in done.stdout
    assert new["works"] and done.stdout.rstrip().endswith("works with vLLM 0.33")
