"""Running cases in environments, each with a pytest of its own: one after the other, or many at a time."""
