"""New releases: which there are since the last look, what to run on them, and how case files and ranges follow from the verdicts."""
