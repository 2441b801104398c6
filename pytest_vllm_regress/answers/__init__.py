"""Answers that run nothing: audit, explain, uses, the history of the API, and deployment files."""
