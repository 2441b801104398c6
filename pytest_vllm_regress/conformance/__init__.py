"""What works on which vLLM: running the conformance suite, its record, its table."""
