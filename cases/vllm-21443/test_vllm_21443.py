"""vllm#21443: a server must report a killed engine core instead of letting requests wait."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import ChildDied, RemoteError, Server

pytestmark = [pytest.mark.vllm_case("vllm-21443"), pytest.mark.vllm_engine(front="serve", generation="V1", fresh=True)]


def test_killed_engine_core_is_noticed(vllm_server: Server, vllm_leg: str) -> None:
    if vllm_leg == "subject":
        for process in vllm_server.engine_processes():
            process.kill()
    try:
        answer = vllm_server.chat([{"role": "user", "content": "Hello"}], max_tokens=2, timeout=20)
    except (ChildDied, RemoteError):
        return  # an error or the end of the server is a correct reaction
    assert vllm_leg == "control", f"the server answered without an engine: {answer}"
