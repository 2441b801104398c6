"""Fuzzing of vLLM's tool and reasoning parsers: drawn calls in each parser's format, cuts into
deltas, an oracle, and a reducer."""
