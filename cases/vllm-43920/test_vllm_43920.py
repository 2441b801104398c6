"""vllm#43920: a constraint that the backend in use cannot do is refused, and the engine lives on."""

from __future__ import annotations

import contextlib

import pytest

from pytest_vllm_regress import AsyncEngine, RemoteError

# xgrammar refuses an empty alternative, so `auto` leaves it to llguidance.
BOTH, OTHER = r"^(.*)$", r"^(|.*)$"


@pytest.mark.vllm_case("vllm-43920")
@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True)
def test_second_backend(vllm_engine: AsyncEngine, vllm_leg: str) -> None:
    for regex in [BOTH, OTHER] if vllm_leg == "subject" else [OTHER]:
        with contextlib.suppress(RemoteError):  # to refuse it is right
            vllm_engine.generate("Hello", {"max_tokens": 4, "structured_outputs": {"regex": regex}}, timeout=20)
    vllm_engine.check()
