"""vllm-project/vllm#32429: two servers that keep images in shared memory must be able to run side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Engines, EngineSpec, Server, png_url

# The first release whose cache of images can be in shared memory.
pytestmark = [pytest.mark.vllm_case("vllm-32429"), pytest.mark.vllm_requires(vllm=">=0.11")]
ENGINE: dict[str, Any] = {"front": "serve", "generation": "V1", "model": "vision", "max_model_len": 1024}
SHARED = {"mm_processor_cache_type": "shm", "mm_processor_cache_gb": 0.2}


def describes_an_image(server: Server) -> bool:
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": png_url(56, 56)}}]
    messages = [{"role": "user", "content": content}]
    answer = server.post("/v1/chat/completions", {"model": server.model, "messages": messages, "max_tokens": 4})
    return answer.status_code == 200 and bool(answer.json()["choices"][0]["message"]["content"])


@pytest.fixture
def first(vllm_engines: Engines) -> Iterator[Server]:
    server = vllm_engines(**ENGINE, extra=SHARED)
    yield server
    vllm_engines.discard(server)


@pytest.fixture
def engine_spec(engine_spec: EngineSpec, vllm_leg: str, first: Server) -> EngineSpec:
    """Return the spec of the second server, which starts while the first one runs."""
    return engine_spec.merged_with({"extra": SHARED if vllm_leg == "subject" else {}})


# Another number of sequences, because equal engines are shared.
@pytest.mark.vllm_engine(**ENGINE, extra={"max_num_seqs": 2})
def test_second_server_starts(vllm_server: Server, first: Server, vllm_at_work: AtWork) -> None:
    vllm_at_work("the first server describes an image", describes_an_image(first))
    assert describes_an_image(vllm_server)
    vllm_server.check()
