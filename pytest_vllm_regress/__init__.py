"""Documented vLLM failures as pytest cases, on real vLLM wheels, with or without a GPU."""

__version__ = "0.1.0"
