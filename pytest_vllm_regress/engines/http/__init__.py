"""A server as tests ask it: the addresses of vLLM's HTTP API, worded once for all versions."""
