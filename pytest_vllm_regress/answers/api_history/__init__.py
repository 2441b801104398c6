"""Which API each stable release of vLLM has: read from the wheels, stored as changes, looked up by
release."""
