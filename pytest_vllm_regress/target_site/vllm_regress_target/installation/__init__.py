"""Checks of an installation, loaded by path in its interpreter: whether vLLM imports and starts,
and whether it has what a project uses."""
