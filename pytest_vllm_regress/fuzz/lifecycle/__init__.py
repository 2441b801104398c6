"""Drawn stories of a server: requests under load, maintenance, signals and ends, with a check of
its history."""
