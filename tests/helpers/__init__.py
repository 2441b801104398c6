"""Helpers that several test modules share."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Root of the checkout."""
FEWER_PLUGINS = "-p no:hypothesispytest -p no:anyio -p no:schemathesis"
"""Options for a pytest that a test starts. With these plugins it imports Hypothesis and trio, which takes 1.3 of its 1.7 CPU seconds."""
