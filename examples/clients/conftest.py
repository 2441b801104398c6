"""One server for the tests of all clients."""

import os

import pytest

from pytest_vllm_regress import Engines, Server

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # litellm fetches its prices otherwise


@pytest.fixture(scope="session")
def server(vllm_engines: Engines) -> Server:
    options = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    return vllm_engines(front="serve", max_model_len=16384, server_options=options)
