"""Runs in the target: vLLM's own parsers, asked by the package's helper."""

from vllm_regress_target.parsers import tool_calls

__all__ = ["tool_calls"]
