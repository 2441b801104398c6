"""Processes in the target interpreter, from the agent to the last leftover: starting, asking, watching, ending them."""
