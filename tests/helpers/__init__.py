"""Helpers that several test modules share."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Root of the checkout."""
FEWER_PLUGINS = "-p no:hypothesispytest -p no:anyio -p no:schemathesis"
"""Options for a pytest run that a test starts.

These plugins import Hypothesis, trio and Schemathesis, which takes more than half a second.
"""
