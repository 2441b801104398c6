"""Tiny checkpoints that Hugging Face and vLLM accept, made on this machine with seeded weights and
without downloads."""
