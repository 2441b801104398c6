"""Runs in the target: a part of vLLM's front-end, asked by the package's helper."""

from vllm_regress_target.frontend import port_from_file

__all__ = ["port_from_file"]
