"""``vllm-regress fuzz schemas``: drawn JSON schemas for the backends of structured output."""
