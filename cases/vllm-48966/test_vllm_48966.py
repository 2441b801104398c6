"""vllm-project/vllm#48966: a server whose engine core was killed ends with exit status 0"""

from __future__ import annotations

import signal

import pytest

from pytest_vllm_regress import AtWork, Script, Server

pytestmark = [pytest.mark.vllm_case("vllm-48966"), pytest.mark.vllm_engine(front="serve", generation="V1")]


@pytest.mark.vllm_requires(vllm=">=0.10.2", cause="failure")  # older servers do not end when their core is killed
def test_exit_status_tells_of_the_dead_core(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """A supervisor that restarts after failures must see one when the engine core has died."""
    content = Script.text("Paris.").prompt("Capital of France?")
    answer = vllm_server.chat([{"role": "user", "content": content}], max_tokens=20)
    vllm_at_work("the engine answered", answer["choices"][0]["message"]["content"] == "Paris.")
    vllm_server.signal(signal.SIGKILL, "core")
    status = vllm_server.wait_for_exit(60)
    assert status != 0, f"exit status {status} after the engine core was killed"
