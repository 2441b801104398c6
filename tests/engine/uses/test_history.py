"""The history of vLLM's API against the installed package: the same names, arguments and options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.api_history.store import history
from pytest_vllm_regress.answers.uses.check import UseChecker
from pytest_vllm_regress.answers.uses.project import read_project
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.installed import run_isolated
from pytest_vllm_regress.environments.names import resolve

pytestmark = pytest.mark.engine
PROJECT = {
    "app.py": """
import vllm.envs as envs
from vllm import LLM, AsyncEngineArgs, SamplingParams
from vllm.beam_search import BeamSearchInstance
from vllm.config import Config, VllmConfig
from vllm.distributed.parallel_state import get_world_group
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.openai.protocol import ChatCompletionRequest
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.sampling_params import GuidedDecodingParams, StructuredOutputsParams
from vllm.utils import FlexibleArgumentParser, get_open_port
from vllm.utils.network_utils import get_ip
from vllm.v1.engine.async_llm import AsyncLLM

print(envs.VLLM_USE_V1, envs.VLLM_MSGPACK_ZERO_COPY_THRESHOLD, LLM.sleep, LLM.collective_rpc, LLM.from_engine_args)
BeamSearchInstance(prompt_tokens=[], logprobs=None)
SamplingParams(n=1, guided_decoding=None, structured_outputs=None, truncate_prompt_tokens=1)
GuidedDecodingParams(regex="a", disable_fallback=True)
EngineArgs(model="m", swap_space=1, worker_extension_cls="x", logprobs_mode="raw")
AsyncEngineArgs(model="m", disable_log_requests=True, enable_log_requests=True)
""",
    "serve.sh": """
vllm serve m --swap-space 1 --enable-log-requests --disable-log-requests --api-key x --guided-decoding-backend auto \\
    --structured-outputs-config x --max-model-len 1 --enable-server-load-tracking --logprobs-mode x
""",
}
SCRIPT = """
import importlib, inspect, json, sys
def find(path):
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            value = getattr(value, part)
        return value
def has(kind, target, detail):
    try:
        value = find(target)
        return kind == "name" or detail in inspect.signature(value).parameters
    except AttributeError:
        return False
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils import FlexibleArgumentParser
options = {text for action in make_arg_parser(FlexibleArgumentParser())._actions for text in action.option_strings}
asked = json.loads(sys.argv[1])
print("ANSWER" + json.dumps([t in options if k == "option" else has(k, t, d) for k, t, d in asked]))
"""


@pytest.mark.parametrize("version", ["0.8.4", "0.8.5"])
def test_the_history_agrees_with_the_installed_package(version: str, tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    checker = UseChecker(history())
    release = history().releases.index(version)
    uses = [
        use
        for use in read_project(tmp_path, history()).uses
        if use.kind in ("name", "keyword", "option")
    ]
    assert len(uses) > 35
    python = EnvironmentCache().ensure(resolve(f"vllm-{version}"))
    questions = [(use.kind, use.targets[0], use.detail) for use in uses]
    done = run_isolated([str(python), "-c", SCRIPT, json.dumps(questions)], timeout_s=300, keep=())
    assert done.returncode == 0, done.stderr
    installed = json.loads(done.stdout.partition("ANSWER")[2])
    recorded = [not checker.statuses(use)[release].missing for use in uses]
    assert {use.name: there for use, there in zip(uses, recorded, strict=True)} == {
        use.name: there for use, there in zip(uses, installed, strict=True)
    }
    assert True in installed
    assert False in installed
