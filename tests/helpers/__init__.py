"""What several tests use."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout."""
