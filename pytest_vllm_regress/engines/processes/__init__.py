"""Processes in the target interpreter: starting them, sending them requests, monitoring them,
ending them."""
