"""Tiny checkpoints, made on this machine: valid for Hugging Face and vLLM, seeded, without downloads."""
