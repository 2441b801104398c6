"""Runs in the target: a part of vLLM's front-end, asked by the package's helper."""

from vllm_regress_target.frontend import is_beyond_xgrammar

__all__ = ["is_beyond_xgrammar"]
