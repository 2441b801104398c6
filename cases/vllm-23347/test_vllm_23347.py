"""vllm#23347: when the KV cache is full, the less important request waits, and the engine lives on."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine

# Two requests grow to 14 blocks or more, and there are 11. The engine dies where the more important one is the first to find none:
# so it has prompts of several lengths.
TOKENS, BLOCKS, LENGTHS = 100, 12, (1, 17, 9, 25, 5, 21)


@pytest.mark.vllm_case("vllm-23347")
@pytest.mark.vllm_requires(vllm=">=0.9")  # the first whose V1 engine knows priorities
@pytest.mark.vllm_engine(
    front="async",
    generation="V1",
    fresh=True,
    max_model_len=128,
    extra={"scheduling_policy": "priority", "num_gpu_blocks_override": BLOCKS, "enable_prefix_caching": False},
)
def test_preempted_by_priority(vllm_engine: AsyncEngine, vllm_leg: str) -> None:
    priorities = [1, 0] if vllm_leg == "subject" else [0, 0]  # the lower number is the more important
    for length in LENGTHS:
        counts = vllm_engine.call(
            "tokens_of", name=length, prompts=["a", "b" * length], priorities=priorities, max_tokens=TOKENS, timeout=20
        )
        assert counts == [TOKENS] * 2
    vllm_engine.check()
