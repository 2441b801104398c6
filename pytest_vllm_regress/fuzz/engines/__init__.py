"""Drawn requests on pairs of configurations that must agree."""
