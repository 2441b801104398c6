"""What every other folder may use and what knows nothing of them: paths, deadlines, files, masking, validation."""
