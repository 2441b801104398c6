"""Which API each stable release of vLLM has, looked up by release.

``python -m tools.api_history`` builds the stored history from the wheels.
"""
