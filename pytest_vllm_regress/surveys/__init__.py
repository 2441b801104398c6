"""Measurements of whole releases: conformance, states of servers, drift, and vLLM's own tests."""
