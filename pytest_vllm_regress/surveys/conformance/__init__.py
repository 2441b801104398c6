"""Which features work on which vLLM: run the conformance suite, record its results, and write the
table."""
