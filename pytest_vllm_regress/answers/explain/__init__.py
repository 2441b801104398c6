"""Explain a log: which documented failures it shows, on which lines, and what to do about them."""
