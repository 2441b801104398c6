"""vllm#43920: a constraint that the current backend does not support must not kill the engine."""

from __future__ import annotations

import contextlib

import pytest

from pytest_vllm_regress import AsyncEngine, RemoteError

# xgrammar rejects flags, so `auto` chooses llguidance for them.
SUPPORTED_BY_BOTH, LLGUIDANCE_ONLY = r"^(.*)$", r"(?i)yes"


@pytest.mark.vllm_case("vllm-43920")
@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True)
def test_second_backend(vllm_engine: AsyncEngine, vllm_leg: str) -> None:
    for regex in [SUPPORTED_BY_BOTH, LLGUIDANCE_ONLY] if vllm_leg == "subject" else [LLGUIDANCE_ONLY]:
        with contextlib.suppress(RemoteError):  # rejecting the request is correct
            vllm_engine.generate("Hello", {"max_tokens": 4, "structured_outputs": {"regex": regex}}, timeout=20)
    vllm_engine.check()
