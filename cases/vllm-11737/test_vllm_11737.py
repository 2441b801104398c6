"""vllm#11737: a server must report a killed tensor-parallel worker instead of letting requests wait."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import ChildDied, RemoteError, Server


@pytest.mark.vllm_case("vllm-11737")
@pytest.mark.vllm_engine(front="serve", generation="V1", executor="mp", tensor_parallel_size=2, fresh=True)
def test_killed_worker_is_noticed(vllm_server: Server, vllm_leg: str) -> None:
    if vllm_leg == "subject":
        *_, first, _second = vllm_server.engine_processes()  # workers come last; the engine uses the first one's answer
        first.kill()
    try:
        answer = vllm_server.chat([{"role": "user", "content": "Hello"}], max_tokens=2, timeout=20)
    except (ChildDied, RemoteError):
        return  # an error or the end of the server is a correct reaction
    assert vllm_leg == "control", f"the server answered without a worker: {answer}"
