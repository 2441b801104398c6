"""Helpers without domain knowledge: paths, deadlines, files, masking, validation."""
