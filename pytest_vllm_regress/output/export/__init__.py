"""Export documented failures: as a standalone script, an upstream bug report, or OSV records."""
