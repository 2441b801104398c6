"""Validate cases: prove them in their evidence environments, and trace the commits that they document."""
