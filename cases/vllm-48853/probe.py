"""Runs in the target: a part of vLLM's front-end, asked by the package's helper."""

from vllm_regress_target.frontend import streamed_text

__all__ = ["streamed_text"]
