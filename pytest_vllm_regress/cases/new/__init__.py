"""New cases: their directory and their first test."""
