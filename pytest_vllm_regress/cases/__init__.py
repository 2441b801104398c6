"""Documented failures as data: case files, verdicts, results, proofs."""
