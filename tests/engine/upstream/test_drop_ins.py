"""A user's suite with upstream's ``RemoteOpenAIServer`` moves to ours by one import line; and
upstream's own form of test runs in a target."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.repositories import RepositoryBuilder

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SUITE = """
import openai
import pytest

IMPORT
MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
ARGUMENTS = ["--dtype", "bfloat16", "--max-model-len", "2048", "--enforce-eager"]
PORTS = []


@pytest.fixture(scope="module")
def server():
    with RemoteOpenAIServer(MODEL, ARGUMENTS, max_wait_seconds=170) as remote_server:
        yield remote_server


def test_blocking(server):
    with server.get_client(timeout=60) as client:
        assert client.api_key == RemoteOpenAIServer.DUMMY_API_KEY
        assert [model.id for model in client.models.list()] == [MODEL]
        completion = client.completions.create(model=MODEL, prompt="Hello", max_tokens=5, temperature=0.0)
        assert completion.usage.completion_tokens == 5
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="nothing", prompt="Hello")


def test_async(server):
    import asyncio

    async def ask():
        async with server.get_async_client() as client:
            chunks = await client.completions.create(model=MODEL, prompt="Hello", max_tokens=5, stream=True)
            return [chunk.choices[0].finish_reason async for chunk in chunks]

    assert asyncio.run(ask())[-1] == "length"


def test_the_addresses(server):
    assert server.url_for("v1", "models") == f"http://{server.host}:{server.port}/v1/models" == server.url_root + "/v1/models"
"""
MORE = """

def test_equal_arguments_share_a_server(server):
    with RemoteOpenAIServer(MODEL, ARGUMENTS, max_wait_seconds=170) as other:
        assert other.port == server.port


@pytest.mark.parametrize(("chosen", "engine"), [(None, "V1"), ("0", "V0"), ("1", "V1")])
def test_v1_is_the_default_as_on_cuda_and_what_a_test_sets_counts(chosen, engine, monkeypatch):
    if chosen is not None:
        monkeypatch.setenv("VLLM_USE_V1", chosen)
    with RemoteOpenAIServer(MODEL, [*ARGUMENTS, "--max-num-seqs", "8"], max_wait_seconds=170) as other:
        assert f"Initializing a {engine} LLM engine" in other.server.child.log.read_text()
        assert other.server.child.start_method == "fork"


def test_a_wrong_argument_ends_the_start_with_the_log():
    with pytest.raises(RuntimeError, match="Server exited unexpectedly(.|\\n)*unrecognized arguments: --colour"):
        RemoteOpenAIServer(MODEL, ["--colour", "red"])


def test_a_name_without_a_stand_in_is_refused():
    with pytest.raises(Exception, match="no stand-in"):
        RemoteOpenAIServer("facebook/bart-large-cnn", [])


def test_a_runner_of_engines():
    from pytest_vllm_regress import VllmRunner

    with VllmRunner("facebook/opt-125m", enforce_eager=True) as runner:
        (ids, text), = runner.generate_greedy(["Hello"], 4)
        (new_ids, new_text, logprobs), = runner.generate_greedy_logprobs(["Hello"], 4, 2)
    assert ids[-4:] == new_ids and text == "Hello" + new_text and len(logprobs) == 4
"""


def test_one_import_line_moves_a_suite(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(
        SUITE.replace("IMPORT", "from pytest_vllm_regress import RemoteOpenAIServer") + MORE
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        ["env", "VLLM_REGRESS_ENVIRONMENT=vllm-0.8.5", *command],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
    )
    assert "10 passed" in done.stdout, done.stdout + done.stderr


def test_upstream_s_form_of_a_suite_runs_unmodified_in_the_target(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "tests/__init__.py": "",
        "tests/conftest.py": "",
        "tests/utils.py": "class RemoteOpenAIServer:\n    pass\n",
        "tests/area/__init__.py": "",
        "tests/area/test_suite.py": SUITE.replace(
            "IMPORT", "from ..utils import RemoteOpenAIServer"
        ),
        "tests/area/test_others.py": (
            "import os, pytest, vllm\n"
            "def test_dies(): os._exit(3)\n"
            "def test_after_it(): assert vllm.__version__ == '0.8.5'\n"
            "def test_meaning(): assert 'blue' in 'red'\n"
            "def test_kernel(): import torch; torch.zeros(1, device='cuda')\n"
        ),
    }
    builder = RepositoryBuilder(tmp_path / "clone")
    builder.commit("tests", files)
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "pytest_vllm_regress",
        "survey",
        "upstream",
        "--source",
        str(builder.place),
        "--ref",
        "main",
    ]
    command += ["--env", "vllm-0.8.5", "--out", str(out), "tests/area"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    outcomes = {
        result["test"].partition("::")[2]: result["outcome"]
        for result in json.loads((out / "results.json").read_text())["results"]
    }
    assert outcomes == {
        **dict.fromkeys(
            ("test_blocking", "test_async", "test_the_addresses", "test_after_it"), "passed"
        ),
        **dict.fromkeys(("test_dies", "test_meaning"), "failed"),
        "test_kernel": "needs a GPU",
    }
