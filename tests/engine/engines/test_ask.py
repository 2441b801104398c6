"""``vllm-regress ask`` with a real server."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine
CLIENT = """
import json, os, sys, urllib.request
body = {"model": os.environ["VLLM_REGRESS_MODEL"], "prompt": "Hello", "max_tokens": 3, "ignore_eos": True}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(sys.argv[1] + "/v1/completions", json.dumps(body).encode(), headers)
print(json.dumps(json.load(urllib.request.urlopen(request, timeout=60))["usage"]))
sys.exit(3)
"""


@pytest.mark.usefixtures("user_caches")
def test_a_command_talks_to_a_server() -> None:
    client = [sys.executable, "-c", CLIENT, "{url}"]
    command = ["ask", "--env", "vllm-0.8.5", "--show-log", "--set", "generation=V1", "--", *client]
    process = subprocess.run(
        [sys.executable, "-m", "pytest_vllm_regress", *command],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 3, process.stderr[-4000:]
    assert json.loads(process.stdout)["completion_tokens"] == 3
    assert '"POST /v1/completions HTTP/1.1" 200' in process.stderr
