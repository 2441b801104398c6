"""Documented failures in forms that others read: a standalone script, an upstream bug report, and OSV records."""
