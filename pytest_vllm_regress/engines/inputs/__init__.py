"""Prompts and answers as values: scripts for the simulated model, media, and chat messages in the
same form for every version."""
