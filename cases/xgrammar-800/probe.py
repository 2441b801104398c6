"""Runs in the target: a structured-output package by itself, asked by the package's helper."""

from vllm_regress_target.grammars import takes

__all__ = ["takes"]
