"""Engines that outlive a test: fixtures of wider scope, asynchronous clients, and scripts without
pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

TESTS = """
import asyncio
import pytest

@pytest.fixture(scope="module")
def client(vllm_engines):
    server = vllm_engines(front="serve", generation="V1")
    yield server
    vllm_engines.release(server)

SEEN = []

def ask(server):
    SEEN.append(server.child.pid)
    return server.chat([{"role": "user", "content": "Hello"}], max_tokens=3)["choices"]

def test_first(client):
    assert len(ask(client)) == 1

@pytest.mark.vllm_engine(generation="V1")
def test_another_engine_between(vllm_engine):
    vllm_engine.check()

@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_another_test_shares_the_server_and_fails(vllm_server):
    ask(vllm_server)
    assert False, "expected failure"

def test_second(client):
    ask(client)
    assert len(set(SEEN)) == 1

def test_asynchronous(client):
    async def both():
        async with client.async_client() as http:
            body = {"model": client.model, "prompt": "Hello", "max_tokens": 2}
            return await asyncio.gather(*(http.post("/v1/completions", json=body) for _ in range(2)))
    assert [answer.status_code for answer in asyncio.run(both())] == [200, 200]
"""
SCRIPT = """
import sys
from pytest_vllm_regress import engine
pids = []
for _ in range(2):
    with engine("vllm-0.8.5", generation="V1") as e:
        (answer,) = e.generate("Hello", {"max_tokens": 2})
        pids.append(e.child.pid)
assert len(answer["outputs"]) == 1 and len(set(pids)) == 1
assert "pytest" not in sys.modules
print(*pids)
"""


@pytest.mark.usefixtures("user_caches")
def test_a_module_fixture_keeps_its_server(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess(
        "--vllm-env=vllm-0.8.5", "--vllm-device=sim", "-p", "no:randomly"
    )
    result.assert_outcomes(passed=4, failed=1)


def test_a_script_without_pytest_shares_an_engine(tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr.count("importing vLLM") == 1
    assert not Path(f"/proc/{completed.stdout.split()[0]}").exists()
