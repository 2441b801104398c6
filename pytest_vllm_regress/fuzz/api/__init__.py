"""Requests drawn from a server's own description of its API, and what is wrong with the answers."""
