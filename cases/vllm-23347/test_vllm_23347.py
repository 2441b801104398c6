"""vllm#23347: when the KV cache is full, the less important request must wait and the engine must survive."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine

# Two requests need at least 14 blocks, and 11 are available. The engine dies if the more important request runs out of blocks first,
# so it is tried with prompts of several lengths.
TOKENS, BLOCKS, LENGTHS = 100, 12, (1, 17, 9, 25, 5, 21)


@pytest.mark.vllm_case("vllm-23347")
@pytest.mark.vllm_requires(vllm=">=0.9")  # the first release whose V1 engine supports priorities
@pytest.mark.vllm_engine(
    front="async",
    generation="V1",
    fresh=True,
    max_model_len=128,
    extra={"scheduling_policy": "priority", "num_gpu_blocks_override": BLOCKS, "enable_prefix_caching": False},
)
def test_preempted_by_priority(vllm_engine: AsyncEngine, vllm_leg: str) -> None:
    priorities = [1, 0] if vllm_leg == "subject" else [0, 0]  # a lower number is more important
    for length in LENGTHS:
        counts = vllm_engine.call(
            "tokens_of", name=length, prompts=["a", "b" * length], priorities=priorities, max_tokens=TOKENS, timeout=20
        )
        assert counts == [TOKENS] * 2
    vllm_engine.check()
