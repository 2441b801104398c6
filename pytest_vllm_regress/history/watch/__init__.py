"""Watch for new releases: find them, run the cases on them, and correct case files and ranges from
the verdicts."""
