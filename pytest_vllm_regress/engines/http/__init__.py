"""Requests to a server over vLLM's HTTP API, with the same methods for all versions."""
