"""Families of models: their configuration, weights, tokenizers and other files."""
